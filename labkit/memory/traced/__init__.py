"""Any torch module's training step, run once on tensors without numbers: who holds what, when."""
