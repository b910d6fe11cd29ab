"""Where a job stands: reserved cells, links between racks, tasks on mixed GPUs."""
