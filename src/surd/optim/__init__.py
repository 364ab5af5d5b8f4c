"""How weights move: families of learning-rate schedules and optimisers."""
