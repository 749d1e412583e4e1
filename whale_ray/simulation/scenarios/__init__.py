"""Stories that whale-ray's own state machines must survive; their names stand in ../seeds.py."""
