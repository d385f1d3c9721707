"""What joins txmsg to frameworks that applications are written with. Each package needs its framework, and no other."""
