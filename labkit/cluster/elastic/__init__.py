"""Jobs whose GPUs may change while they run: trainings by goodput, jobs with deadlines."""
