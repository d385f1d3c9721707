"""The mirror as a whole: the verifier, and the tailer under faults, with real processes."""
