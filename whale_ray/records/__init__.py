"""What is kept of runs: a folder for each, written while the job runs, and read by the page."""
