"""Integrations of txmsg with application frameworks. Each package needs its framework, and no other."""
