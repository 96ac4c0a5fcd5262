"""As much of torch as the driver of LMCache asks for."""

bfloat16 = "bfloat16"


class Numbers(list):
    def __ge__(self, least):
        return Numbers(number >= least for number in self)


def arange(count):
    return Numbers(range(count))
