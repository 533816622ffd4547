"""The command `proxskip-server export`."""

from __future__ import annotations

from common.units import bytes_text
from server.commands import options
from server.commands.console import Terminal
from server.commands.new_file import refuse_existing
from server.runs.run_folder import MODEL, RunFolder

FILES = {"torch": "model.pt", "onnx": "model.onnx", "sparse": "model.sparse.safetensors"}


def export(run: options.RunPath, to: options.ExportTo, output: options.ExportFile = None) -> None:
    """Write the model of a finished run for other programs.

    torch: a state_dict for torch.load(weights_only=True). onnx: a graph that takes raw columns or pixels. sparse: a
    safetensors file without the zeros. docs/models.md has the lines that read each.
    """
    file = output or run / FILES[to]
    refuse_existing(file)

    from common.storage.replace import replace_file
    from server.model.exports import exported

    terminal = Terminal()
    folder = RunFolder(run)
    content = exported(folder.model(), to.value)
    replace_file(file, content)
    whole = (folder.path / MODEL).stat().st_size
    terminal.say(f"{file}: {bytes_text(len(content))} ({MODEL}: {bytes_text(whole)})")
    if to == "sparse":
        size = "a smaller file" if len(content) < whole else "no smaller, as most of it is no weights"
        terminal.say(f"{size}; and no faster model: common runtimes compute with the zeros too")
