"""Help: every command has a summary, and every option of it says what it is for."""

import pytest

from surd.cli import application, commands, main

COMMANDS = dict(commands())


def test_there_are_commands() -> None:
    assert {"train", "translate", "score"} <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_summary_of_one_sentence(name: str) -> None:
    summary = COMMANDS[name].partition("\n")[0]
    assert summary.endswith(".")
    assert len(summary) <= 120, "it stands in `surd --help`"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_of_a_command_says_what_it_is_for(name: str) -> None:
    undocumented = [
        argument.name
        for argument in application()[name].assemble_argument_collection(parse_docstring=True)
        if argument.show and not argument.parameter.help
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_page_is_printed_as_data(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith(f"Usage: surd {name} ")
    assert output.err == ""
