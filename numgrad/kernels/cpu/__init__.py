"""CPU kernels: Numba functions called by address (see ``numgrad.kernels.native``)."""
