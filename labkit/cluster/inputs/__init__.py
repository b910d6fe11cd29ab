"""Jobs and machines: traces of arrivals, pools of GPUs, how fast kinds of jobs run on them."""
