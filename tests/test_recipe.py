import ast
import pathlib
import re

import pytest

from evaljax import recipe
from evaljax.core import errors


def write(folder, body):
    path = folder / "mine.py"
    path.write_text(
        "from evaljax import recipe\n\ndef get_config():\n    config = recipe.default_config()\n"
        f"{body}\n    return config\n"
    )
    return str(path)


def test_a_recipe_and_its_overrides_become_one_checked_config(tmp_path):  # case C115
    path = write(tmp_path, "    config.tasks = 'a, b'\n    config.model.dtype = 'bfloat16'\n    config.limit = 5")
    config = recipe.read(
        path,
        [
            "model.path=/models/x,y",
            "num_fewshot=3",
            "limit=0.5",
            "gen_kwargs=temperature=0.7,until=['\\n']",
            "dry_run=true",
        ],
    )
    assert config.tasks == ("a", "b")
    assert config.model.path == "/models/x,y"  # a comma in a path is a comma in a path
    assert config.model.dtype == "bfloat16"
    assert (config.num_fewshot, config.limit, config.dry_run) == (3, 0.5, True)
    assert config.gen_kwargs == {"temperature": 0.7, "until": ["\n"]}


@pytest.mark.parametrize("value", ["a,b", "('a', 'b')", "['a', 'b']"])
def test_tasks_are_a_list_or_a_tuple(tmp_path, value):
    path = write(tmp_path, "    config.tasks = ('z',)")
    assert recipe.read(path, [f"tasks={value}"]).tasks == ("a", "b")
    assert recipe.read(path).tasks == ("z",)


def test_none_unsets_an_optional_key(tmp_path):
    path = write(tmp_path, "    config.tasks = 'a'\n    config.num_fewshot = 5")
    assert recipe.read(path, ["num_fewshot=None"]).num_fewshot is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_fewshots=1", r"unknown config key 'num_fewshots'\. Did you mean 'num_fewshot'\?"),
        ("model.pth=x", r"--config\.model\.pth: unknown config key 'pth'\. Did you mean 'path'\?"),
        ("modle.path=x", r"unknown section 'modle'\. Did you mean 'model'\?"),
        ("model=x", r"--config\.model: a section; set one of its keys: add_bos_token"),
        ("model.think_end_token=", r"model\.think_end_token = ''; expected a text, for example </think>, or None"),
        ("limit=many", r"limit = 'many'; expected float or None"),
        ("limit=0", r"limit = 0\.0; expected a number above 0"),
        ("limit=-1", r"limit = -1\.0; expected a number above 0"),
        ("num_fewshot=2.5", r"num_fewshot = '2\.5'; expected int or None"),
        ("num_fewshot=-1", r"num_fewshot = -1; expected 0 or more"),
        ("log_samples=maybe", r"log_samples = 'maybe'; expected bool"),
        ("model.dtype=float8", r"model\.dtype = 'float8'; expected one of float32"),
        ("model.max_length=1", r"model\.max_length = 1; expected 2 tokens or more"),
        ("engine.num_slots=-2", r"engine\.num_slots = -2; expected 0 \(chosen\) or more"),
        ("gen_kwargs=hot", r"gen_kwargs = 'hot'; expected key=value pairs"),
        ("fewshot_as_multiturn=True", r"fewshot_as_multiturn = True; expected apply_chat_template=True"),
        ("tasks=[a,b]", r"tasks = '\[a,b\]'; expected names separated by commas"),
        ("tasks=", r"tasks = \(\); expected at least one task name"),
        ("limit", r"--config\.limit: a value is expected"),
    ],
)
def test_a_wrong_override_names_key_value_and_what_is_expected(tmp_path, override, message):
    path = write(tmp_path, "    config.tasks = 'a'")
    with pytest.raises(errors.ConfigError, match=message):
        recipe.read(path, [override])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    config.taks = 'a'", "taks"),
        ("    config.seed = 'x'", "seed"),
        ("    config.tasks = 'a'\n    config = {}", r"get_config\(\) returned dict"),
        ("    config.tasks = 'a'\n    import nowhere_at_all", "nowhere_at_all"),
        ("    this is not Python", "NameError"),
        ("    1 = 2", "SyntaxError"),
    ],
)
def test_a_broken_recipe_is_named(tmp_path, body, message):
    with pytest.raises(errors.ConfigError, match=rf"recipe .*mine\.py.*{message}"):
        recipe.read(write(tmp_path, body))


def test_a_missing_recipe_names_the_shipped_ones():
    with pytest.raises(
        errors.ConfigError,
        match=r"'configs/quikstart\.py' not found\. Did you mean 'quickstart'\? Shipped recipes: .*quickstart",
    ):
        recipe.read("configs/quikstart.py")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", "seed = -1; expected 0 or more"),
        ("limit=1e999", "limit = inf; expected a number above 0"),
        ("output_dir=", "output_dir = ''; expected a folder, or None"),
        ("data_mirror=", "data_mirror = ''; expected a folder, or None"),
        ("model.path=", "model.path = ''; expected a name"),
        ("bootstrap_iters=None", "bootstrap_iters = 'None'; expected int"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(tmp_path, override, message):
    with pytest.raises(errors.ConfigError, match=message):
        recipe.read(write(tmp_path, "    config.tasks = 'a'"), [override])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tasks": 5}, "tasks = 5; expected names"),
        ({"tasks": "a", "task_path": 5}, "task_path = 5; expected names"),
        ({"tasks": "a", "model": "demo"}, "model = 'demo'; expected a section of keys"),
        ({"tasks": "a", "bootstrap_iters": None}, "bootstrap_iters = None; expected int"),
    ],
)
def test_values_of_another_kind_are_refused(values, message):
    with pytest.raises(errors.ConfigError, match=message):
        recipe.run_config(values)


def test_a_wrong_key_in_a_recipe_names_the_nearest(tmp_path):
    with pytest.raises(errors.ConfigError, match=r"mine.py': unknown config key 'taskss'. Did you mean 'tasks'"):
        recipe.read(write(tmp_path, "    config.taskss = 'a'"))


def test_overrides_reach_keys_that_a_bare_configuration_lacks(tmp_path):
    path = tmp_path / "bare.py"
    path.write_text(
        "import ml_collections\n\ndef get_config():\n    return ml_collections.ConfigDict({'tasks': 'a'})\n"
    )
    config = recipe.read(str(path), ["model.path=/m", "limit=2"])
    assert (config.tasks, config.model.path, config.limit) == (("a",), "/m", 2.0)


def test_readme_has_every_key_with_its_default():
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    table = readme.split("| key | default | meaning |\n")[1].split("\n\n")[0]
    stated = {}
    for line in table.splitlines()[1:]:
        _, keys, defaults, *_ = (cell.strip() for cell in line.split("|"))
        keys = re.findall(r"`(.+?)`", keys)
        values = [ast.literal_eval(text) for text in defaults.split(", ") if text] or [None]
        stated |= dict(zip(keys, values * len(keys) if len(values) == 1 else values, strict=True))
    config = recipe.default_config().to_dict()
    sections = {f"{name}.{key}": value for name in recipe.SECTIONS for key, value in config.pop(name).items()}
    assert stated == {key: None if value in ((), {}) else value for key, value in (config | sections).items()}
