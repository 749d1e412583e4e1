"""The taxi query of the thesis (3.4.1.4): long trips of one vendor per region of New York, now.

`generator` makes trips; `regions` divides a city; `topology` counts; `command` runs it.
"""
