"""One runner a peer: a process in the peer's own environment that loads once and then answers lines of JSON."""
