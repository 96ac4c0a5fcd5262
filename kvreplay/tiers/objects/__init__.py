"""Object stores: each operation on an object is one request, which s3dlio sends."""
