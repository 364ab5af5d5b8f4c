"""What a watch is made of: hooks in somebody's own loop, what is heard there, told as records and alarms."""
