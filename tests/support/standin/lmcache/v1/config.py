from types import SimpleNamespace


class LMCacheEngineConfig:
    @staticmethod
    def from_defaults(**options):
        return SimpleNamespace(**options)
