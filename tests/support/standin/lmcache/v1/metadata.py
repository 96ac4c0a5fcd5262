class LMCacheMetadata:
    def __init__(self, model, world_size, local_world_size, rank, local_rank, dtype, shape, role):
        self.shape = shape
