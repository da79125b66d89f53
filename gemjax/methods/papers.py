"""The form in which the file of a method states its papers."""

from typing import NamedTuple


class Paper(NamedTuple):
    """BibTeX entry of a paper.

    The file of a method has ``PAPERS``, the papers of each part by the name of the function that makes it;
    :func:`gemjax.citation` looks there.

    >>> Paper("article", "hermans2018gradient", {"title": "Gradient Energy Matching", "eprint": "1805.08469"}).url
    'https://arxiv.org/abs/1805.08469'
    """

    kind: str  # Of the entry, such as "article".
    key: str  # Surname of the first author, year and first word of the title.
    fields: dict[str, str]  # In the order of the entry; ``eprint`` is the number at arXiv.

    @property
    def url(self) -> str:
        """Return the address of the paper."""
        eprint, doi = self.fields.get("eprint"), self.fields.get("doi")
        return f"https://arxiv.org/abs/{eprint}" if eprint else self.fields.get("url") or f"https://doi.org/{doi}"

    def bibtex(self) -> str:
        """Return the text of the entry."""
        fields = self.fields | ({"archiveprefix": "arXiv", "url": self.url} if "eprint" in self.fields else {})
        lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
        return f"@{self.kind}{{{self.key},\n{lines}}}"
