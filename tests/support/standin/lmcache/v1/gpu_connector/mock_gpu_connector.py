class MockGPUConnector:
    def __init__(self, kv_shape):
        self.kv_shape = kv_shape
