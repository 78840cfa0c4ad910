"""Library logic merged as TensileMergeLibrary merges it."""

import copy

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.emitters import tensile
from kernelmark.tune.install.emitters.tensile import SizeFate, emitter
from kernelmark_dev.raising import raises

TYPE = {"DataType": 7, "TransposeA": 1, "TransposeB": 0, "UseBias": 0}


def solution(index, name, **more):
    return {"SolutionIndex": index, "SolutionNameMin": name, "DepthU": 64, **more}


def document(solutions, table, *, kind="Equality", problem=TYPE, version="4.33.0"):
    head = [{"MinimumRequiredVersion": version}, "gfx950", "gfx950", ["Device 0049"], problem]
    tail = [[2, 3, 0, 1], table, None, None, "DeviceEfficiency", kind]
    return copy.deepcopy([*head, solutions, *tail])


def logic(*given, place="x.yaml", **more):
    return tensile.parse(yaml.safe_dump(document(*given, **more)), place)


BASE = (
    [
        solution(0, "slow", ISA=[9, 5, 0], Support=dict.fromkeys("abcdefgh", "a long word, too")),
        solution(1, "old", DepthU=32),
        solution(2, "unused", DepthU=16),
    ],
    [[[64, 64, 1, 64], [0, 0.5]], [[128, 64, 1, 64, 1, 2, 3, 4], [1, 0.6]]],
)
ELSEWHERE = [[[7, 8, 1, 9], [0, 0.1]]]  # a table of a size that BASE has not


def merged(extra, **how):
    made, steps = tensile.merge(logic(*BASE), logic(*extra), **how)
    found = {size: (s["SolutionNameMin"], eff) for size, (s, eff) in tensile.answers(made).items()}
    return made, found, {step.size: step.fate for step in steps}


def test_a_new_size_is_added_and_the_others_stay():
    made, found, fates = merged(([solution(0, "new", DepthU=8)], [[[7, 8, 1, 9], [0, 0.1]]]))
    assert fates == {(7, 8, 1, 9): SizeFate.ADDED}
    assert found == {
        (64, 64, 1, 64): ("slow", 0.5),
        (128, 64, 1, 64): ("old", 0.6),  # trimmed to m, n, batch, k
        (7, 8, 1, 9): ("new", 0.1),
    }
    assert [s["SolutionIndex"] for s in made.solutions] == [0, 1, 2]
    assert "unused" not in [s["SolutionNameMin"] for s in made.solutions]


@pytest.mark.parametrize(
    ("efficiency", "how", "fate", "answer"),
    [
        (0.7, {}, SizeFate.BETTER, ("new", 0.7)),
        (0.4, {}, SizeFate.KEPT, ("slow", 0.5)),
        (0.5, {}, SizeFate.KEPT, ("slow", 0.5)),  # equal is not higher
        (0.4, {"force": True}, SizeFate.FORCED, ("new", 0.4)),
        (0.7, {"no_eff": True}, SizeFate.BETTER, ("new", 0.0)),
        (0.4, {"no_eff": True}, SizeFate.KEPT, ("slow", 0.5)),
    ],
)
def test_a_size_that_is_there(efficiency, how, fate, answer):
    extra = ([solution(5, "new", DepthU=8)], [[[64, 64, 1, 64], [0, efficiency]]])
    _, found, fates = merged(extra, **how)
    assert fates[64, 64, 1, 64] is fate
    assert found[64, 64, 1, 64] == answer


def test_of_a_size_given_twice_the_later_one_counts():
    table = [[[7, 8, 1, 9], [0, 0.1]], [[7, 8, 1, 9, 7, 9, 7, 7], [1, 0.2]]]
    _, found, _ = merged(([solution(0, "one", DepthU=1), solution(1, "two", DepthU=2)], table))
    assert found[7, 8, 1, 9] == ("two", 0.2)


def test_equal_solutions_are_one_whatever_their_names():
    made, found, _ = merged(([solution(3, "renamed", DepthU=32, BaseName="another")], ELSEWHERE))
    assert found[7, 8, 1, 9] == ("old", 0.1)
    assert len(made.solutions) == 2


def test_different_solutions_of_one_name_are_told_apart():
    made, found, _ = merged(([solution(0, "slow", DepthU=256)], ELSEWHERE))
    assert found[7, 8, 1, 9] == ("slow_2", 0.1)
    assert found[64, 64, 1, 64] == ("slow", 0.5)
    assert {s["SolutionNameMin"]: s["DepthU"] for s in made.solutions}["slow_2"] == 256


def test_without_staggering_its_parameters_mean_nothing():
    one, other = (solution(0, "slow", StaggerU=0, StaggerUStride=n) for n in (256, 128))
    assert tensile.digest(one) == tensile.digest(other)
    made, _, _ = merged(([one], ELSEWHERE))
    assert made.solutions[-1]["StaggerUStride"] == 0


def test_neither_side_is_changed():
    base = logic(*BASE)
    extra = logic([solution(0, "slow", DepthU=1)], [[[64, 64, 1, 64], [0, 9.0]]])
    before = copy.deepcopy((base.document, extra.document))
    tensile.merge(base, extra)
    assert (base.document, extra.document) == before


def test_the_newer_version_is_required():
    made, _ = tensile.merge(logic(*BASE), logic([solution(0, "n")], ELSEWHERE, version="4.100.0"))
    assert made.document[0] == {"MinimumRequiredVersion": "4.100.0"}


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"problem": {**TYPE, "TransposeA": 0}}, "TransposeA=0"),
        ({"problem": {**TYPE, "UseScaleAB": 1}}, "UseScaleAB=1"),
        ({"kind": "GridBased"}, "GridBased"),
    ],
)
def test_what_does_not_go_together_is_refused(more, shown):
    with pytest.raises(UsageError, match=shown):
        tensile.merge(logic(*BASE), logic([solution(0, "new")], ELSEWHERE, **more))
    # What is off may be written in many ways.
    off = {**TYPE, "UseScaleAB": "", "Mirror": [], "UseE": False}
    assert tensile.merge(logic(*BASE), logic([solution(0, "new")], ELSEWHERE, problem=off))[1]


def test_a_file_by_names():
    names = ("MinimumRequiredVersion", "ScheduleName", "ArchitectureName", "DeviceNames")
    more = ("ProblemType", "Solutions", "IndexOrder", "ExactLogic", "RangeLogic")
    listed = document(*BASE)
    made = dict(zip((*names, *more), listed, strict=False)) | {"LibraryType": "Equality"}
    base = tensile.parse(yaml.safe_dump(made), "base")
    extra = copy.deepcopy(made) | {
        "Solutions": [solution(0, "new", DepthU=1)],
        "ExactLogic": [[[7, 8, 1, 9], [0, 0.3]]],
    }
    result, _ = tensile.merge(base, tensile.parse(yaml.safe_dump(extra), "extra"))
    assert (7, 8, 1, 9) in tensile.answers(result)
    extra["DefaultSolution"] = {"GlobalSplitU": 2}
    with pytest.raises(UsageError, match="DefaultSolution"):
        tensile.merge(base, tensile.parse(yaml.safe_dump(extra), "extra"))
    with pytest.raises(UsageError, match="base"):
        tensile.merge(base, logic(*BASE))


def test_the_table_counts_solutions_by_their_order():
    """Six shipped files of arcturus have one solution, numbered 1, that the table calls 0."""
    one, two = solution(1, "first", DepthU=8), solution(0, "second", DepthU=16)
    found = tensile.answers(logic([one, two], [[[1, 1, 1, 1], [0, 0]], [[2, 2, 1, 2], [1, 0]]]))
    assert [s["SolutionNameMin"] for s, _ in found.values()] == ["first", "second"]
    _, found, _ = merged(([one], [[[1, 1, 1, 1], [0, 0]]]))
    assert found[1, 1, 1, 1] == ("first", 0)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "7",
        "[1, 2]",
        *(
            yaml.safe_dump(document(solutions, table))
            for solutions, table in (
                ([{"SolutionIndex": 0}], []),
                ([{"SolutionNameMin": "x"}], []),
                ([], [[[1, 1, 1, 1], [0, 1]]]),
                ([], [[1, 2]]),
            )
        ),
    ],
)
def test_what_is_no_logic_is_told(text):
    with pytest.raises(UsageError, match=r"x\.yaml"):
        tensile.parse(text, "x.yaml")


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("width", [80, 10**6])
def test_the_layout_of_a_file_is_kept(sort, width):
    text = yaml.dump(document(*BASE), default_flow_style=None, sort_keys=sort, width=width)
    assert tensile.text_of(tensile.parse(text, "x"), text) == text


sizes = st.lists(st.integers(1, 4), min_size=4, max_size=4)
tables = st.lists(
    st.tuples(sizes, st.integers(0, 3), st.floats(0, 1)).map(lambda t: [t[0], [t[1], t[2]]])
)
sides = st.tuples(
    st.lists(st.integers(0, 5), min_size=4, max_size=4).map(
        lambda depths: [solution(i, f"s{d}", DepthU=d) for i, d in enumerate(depths)]
    ),
    tables,
)


@given(sides, sides, st.booleans())
def test_every_size_has_the_solution_it_should(base, extra, force):
    one, other = logic(*base), logic(*extra)
    made, _ = tensile.merge(one, other, force=force)
    old, new, found = tensile.answers(one), tensile.answers(other), tensile.answers(made)
    assert found.keys() == old.keys() | new.keys()
    for size, (chosen, efficiency) in found.items():
        wins = size in new and (size not in old or force or new[size][1] > old[size][1])
        wanted = new[size] if wins else old[size]
        assert (chosen["DepthU"], efficiency) == (wanted[0]["DepthU"], wanted[1])
    assert len({s["DepthU"] for s in made.solutions}) == len(made.solutions)
    assert {s["SolutionIndex"] for s in made.solutions} == set(range(len(made.solutions)))


# -- the emitter


@pytest.fixture
def folders(tmp_path):
    """A base folder by types, and a flat incremental one."""
    for kind in ("Equality", "GridBased"):
        (tmp_path / "base" / kind).mkdir(parents=True)
        text = yaml.safe_dump(document(*BASE, kind=kind), default_flow_style=None)
        (tmp_path / "base" / kind / "gfx950_BBS.yaml").write_text(text)
    (tmp_path / "inc").mkdir()
    extra = document([solution(0, "new", DepthU=8)], [[[64, 64, 1, 64], [0, 0.9]]])
    (tmp_path / "inc/gfx950_BBS.yaml").write_text(yaml.safe_dump(extra))
    return tmp_path


def prepared(folders, **options):
    given = FrozenDict({"logic": str(folders / "inc"), **options})
    return applying.prepare(emitter, [], folders / "base", given)


def test_an_incremental_folder_goes_into_the_files_of_its_type(folders):
    grid = (folders / "base/GridBased/gfx950_BBS.yaml").read_text()
    change = prepared(folders)
    assert [edit.path.as_posix() for edit in change.edits] == ["Equality/gfx950_BBS.yaml"]
    applying.write(emitter, change, folders / "base")
    assert (folders / "base/GridBased/gfx950_BBS.yaml").read_text() == grid


@pytest.mark.parametrize(
    ("name", "options", "replaced"),
    [
        ("gfx950_BBS.yaml", {}, True),
        ("arcturus_BBS.yaml", {}, False),
        ("arcturus_BBS.yaml", {"force": "yes"}, True),
        ("gfx950_BBS.yaml", {"force": "no"}, False),
    ],
)
def test_a_lower_efficiency_replaces_by_default_but_for_arcturus(folders, name, options, replaced):
    extra = document([solution(0, "new", DepthU=8)], [[[64, 64, 1, 64], [0, 0.1]]])
    (folders / "inc/gfx950_BBS.yaml").unlink()
    (folders / "inc" / name).write_text(yaml.safe_dump(extra))
    for kind in ("Equality", "GridBased"):
        (folders / "base" / kind / "gfx950_BBS.yaml").rename(folders / "base" / kind / name)
    assert bool(prepared(folders, **options).edits) is replaced


def test_an_incremental_file_without_a_base_is_taken_as_it_is(folders):
    text = (folders / "inc/gfx950_BBS.yaml").read_text()
    (folders / "inc/gfx950_HHS.yaml").write_text(text)
    new = next(edit for edit in prepared(folders).edits if edit.before is None)
    assert (new.path.as_posix(), new.after) == ("Equality/gfx950_HHS.yaml", text)


def deeper(folders, *places):
    """The base with its Equality file in these folders instead."""
    (folders / "base/Equality").rename(folders / "moved")
    for place in places:
        (folders / "base" / place).mkdir(parents=True)
        text = (folders / "moved/gfx950_BBS.yaml").read_text()
        (folders / "base" / place / "gfx950_BBS.yaml").write_text(text)


@pytest.mark.parametrize("place", ["asm/gfx950/Equality", "asm/Equality/gfx950"])
def test_an_incremental_file_goes_into_the_one_of_its_name_wherever_it_is(folders, place):
    deeper(folders, place)
    change = prepared(folders)
    assert [edit.path.as_posix() for edit in change.edits] == [f"{place}/gfx950_BBS.yaml"]
    assert change.edits[0].before is not None
    assert any("[O] [64, 64, 1, 64] efficiency 0.5 -> 0.9" in note for note in change.notes)


def test_an_incremental_file_that_may_go_into_several_is_refused(folders):
    deeper(folders, "asm/one/Equality", "asm/two/Equality")
    with raises(UsageError, first="one/Equality", second="two/Equality"):
        prepared(folders)
    (folders / "inc/asm/two/Equality").mkdir(parents=True)
    (folders / "inc/gfx950_BBS.yaml").rename(folders / "inc/asm/two/Equality/gfx950_BBS.yaml")
    (edit,) = prepared(folders).edits
    assert edit.path.as_posix() == "asm/two/Equality/gfx950_BBS.yaml"


def test_a_type_in_the_wrong_folder_is_refused(folders):
    (folders / "inc/GridBased").mkdir()
    (folders / "inc/gfx950_BBS.yaml").rename(folders / "inc/GridBased/gfx950_BBS.yaml")
    with pytest.raises(UsageError, match="Equality"):
        prepared(folders)


def test_options_reach_the_merge(folders):
    text = (folders / "inc/gfx950_BBS.yaml").read_text().replace("0.9", "0.1")
    (folders / "inc/gfx950_BBS.yaml").write_text(text)
    kept = prepared(folders, force="no")
    assert not any(lookup.winner for lookup in kept.lookups)
    assert not kept.edits
    # TensileMergeLibrary replaces what is there unless --force_merge false is given.
    assert prepared(folders).edits == prepared(folders, force="yes").edits
    forced = prepared(folders, no_eff="yes")
    assert len(forced.winners) == 1
    applying.write(emitter, forced, folders / "base")
    after = tensile.answers(
        tensile.parse((folders / "base/Equality/gfx950_BBS.yaml").read_text(), "x")
    )
    assert after[64, 64, 1, 64][1] == 0.0


@pytest.mark.parametrize("name", ["force", "no_eff"])
def test_a_word_that_is_neither_yes_nor_no_is_refused(folders, name):
    with pytest.raises(UsageError, match=f"{name}=maybe"):
        prepared(folders, **{name: "maybe"})
    assert prepared(folders, **{name: "False"}).edits == prepared(folders).edits


def test_what_is_told_is_the_number_that_is_written(folders):
    text = (folders / "inc/gfx950_BBS.yaml").read_text().replace("0.9", "0.1")
    (folders / "inc/gfx950_BBS.yaml").write_text(text)
    notes = prepared(folders, force="yes", no_eff="yes").notes
    assert "Equality/gfx950_BBS.yaml: [!] [64, 64, 1, 64] efficiency 0.5 -> 0" in notes
    (note,) = prepared(folders, no_eff="yes", force="no").notes
    assert note.endswith("[X] [64, 64, 1, 64] efficiency 0.5 stays: 0.1 is offered")


def test_no_efficiency_without_force_is_warned_about(folders):
    for options, warned in (
        ({"no_eff": "yes", "force": "no"}, 1),
        ({"no_eff": "yes"}, 0),
        ({"no_eff": "yes", "force": "yes"}, 0),
        ({"force": "yes"}, 0),
    ):
        notes = prepared(folders, **options).notes
        assert sum("any later merge replaces" in note for note in notes) == warned


def test_the_first_file_of_a_kind_is_new_beside_a_namesake_of_another(folders):
    base = folders / "base/Equality"
    (base / "gfx950_BBS.yaml").rename(base / "gfx950_HHS.yaml")
    assert [e.path.as_posix() for e in prepared(folders).edits] == ["Equality/gfx950_BBS.yaml"]
