"""Reports: a check's findings as a table, JSON, annotations or a page."""
