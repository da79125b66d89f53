"""Wrong arguments of public functions are refused at once, by gemjax, Python or JAX, or accepted and used."""

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from fuzz.arguments import MAKERS, PARAMS, VALUES
from fuzz.strategies import examples
from fuzz.test_runs import strictly
from hypothesis import strategies as st

pytestmark = pytest.mark.slow


@st.composite
def calls(draw):
    """Draw a function, and wrong values for one or two of its arguments."""
    name = draw(st.sampled_from(list(MAKERS)))
    wrong = draw(
        st.dictionaries(st.sampled_from(list(MAKERS[name][1])), st.sampled_from(list(VALUES)), min_size=1, max_size=2)
    )
    # NumPy refuses an array in place of a truth value, also in one sentence.
    flags = [argument for argument in wrong if isinstance(MAKERS[name][1][argument], bool)]
    hypothesis.assume(not any(hasattr(VALUES[wrong[argument]], "ndim") for argument in flags))
    return name, wrong


@examples(300)
@hypothesis.given(call=calls())
def test_wrong_arguments(call):
    name, wrong = call
    make, given = MAKERS[name]
    with strictly(seconds=10, is_refusal=lambda error: isinstance(error, Exception)):
        made = make(**given | {argument: VALUES[value] for argument, value in wrong.items()})
        repr(made)
        if hasattr(made, "init") and hasattr(made, "update"):
            extra = {"worker": 0, "value": 1.0, "local_steps": 1, "local_losses": jnp.zeros(1)}
            jax.eval_shape(lambda grads: made.update(grads, made.init(PARAMS), PARAMS, **extra), PARAMS)


@pytest.mark.parametrize("name", MAKERS)
def test_the_right_arguments_are_accepted(name):
    make, given = MAKERS[name]
    make(**given)
