"""Column expressions: building them, their functions, and computing them over batches.

Building, which imports neither numpy nor pyarrow (only `cast` needs numpy, for its type)::

    expression      the tree: columns, literals, operators, conditions
    functions       PySpark's functions, each of which builds a call of a kernel
    java_patterns   Spark's date patterns: checked, written by and read by
    spark_types     the types that `cast` takes
    spark_names     what PySpark calls differently, or does differently
    civil_days      dates as day numbers, in years of any size

Computing, which is imported when the first batch arrives::

    evaluation      walks a tree for one batch
    kernels         what the nodes of a tree call, on Arrow arrays
"""
