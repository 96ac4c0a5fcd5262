"""Several rings: which drive's I/O goes by which, and the threads that enter the kernel for them."""
