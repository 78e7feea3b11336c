"""What compressing is worth on real slow networks, without training: through MPI, and in a DDP backward on Gloo."""
