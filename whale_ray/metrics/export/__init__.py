"""A job's figures under the names and by the protocols of monitoring systems."""
