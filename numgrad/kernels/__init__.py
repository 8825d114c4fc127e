"""How operations are computed: kernel source, the kernel store, launchers. Knows no Tensor."""
