"""Faults tried for real: processes killed, disks full; what takes long is a command here."""
