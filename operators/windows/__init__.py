"""Windows: durations, what a user asks for, slices, groups, and the operators that aggregate."""
