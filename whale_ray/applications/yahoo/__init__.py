"""The Yahoo streaming benchmark: views of advertisements, counted per campaign and window.

`generator` makes the events and the table of advertisements; `topology` filters, looks the campaign
up and counts; `command` runs it.
"""
