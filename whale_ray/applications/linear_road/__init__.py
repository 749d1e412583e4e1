"""Linear Road: accidents and tolls of expressways, from the position reports of vehicles.

Two parts of the benchmark (Arasu et al., VLDB 2004), those that the thesis takes (3.4.1.4).
`generator` drives vehicles; `vehicles` finds who stops and who enters a segment, `accidents` where
vehicles stand together; `topology` puts both together with statistics; `command` runs it.
"""
