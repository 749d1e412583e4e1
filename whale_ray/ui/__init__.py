"""The page on which one sees jobs work: a server on the loopback, and what a browser shows.

The server reads what jobs keep of their runs (whale_ray/records/), so it needs no connection to any
of them: running jobs and those that have ended are read alike. The browser's part is made of
`frontend/` by `make ui`, and lies in `static/`.
"""
