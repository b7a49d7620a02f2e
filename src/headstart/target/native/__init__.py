"""The llama-shaped forward pass in C: rows bitwise independent by construction, and far less overhead per step."""
