"""As much of torch as the driver of LMCache asks for."""

bfloat16, bool = "bfloat16", "bool"


class Mask(list):
    def __setitem__(self, where, value):
        for place in range(*where.indices(len(self))):
            super().__setitem__(place, value)


def ones(count, dtype):
    assert dtype == bool
    return Mask([True] * count)
