"""Shared by the applications: command line, reports, prepared input, column and range checks."""
