"""Topologies as YAML files (`tspec`), to be run and optimized (Aeolus, section IV)."""
