"""Random numbers, mulhi and joined tiles on the GPU: the tests of their simulated versions."""

from tests.language.tiles.test_concatenate import test_tiles_are_joined_as_by_numpy  # noqa: F401
from tests.language.tiles.test_random_numbers import (  # noqa: F401
    test_mulhi_is_the_high_word_of_the_product,
    test_philox_gives_its_published_test_vectors,
    test_random_numbers_are_those_of_seed_and_counter,
)
