from types import SimpleNamespace


class LMCacheEngineConfig:
    @staticmethod
    def from_defaults(**options):
        return SimpleNamespace(**options, update_config_from_env=lambda: None)
