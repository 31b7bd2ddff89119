"""The phrases that the prose of deep5 avoids, each with what to write instead: `plain_english.py` reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """A pattern to reject; a match inside a match of `allowed` is standard English and stays."""

    pattern: re.Pattern[str]
    write: str
    allowed: re.Pattern[str] | None = None
    letters: tuple[str, str] | None = None
    """For a spelling: a pattern in the word, and what replaces it."""

    def replacement(self, found: str) -> str:
        """The text to write instead of `found`."""
        return self.write if self.letters is None else f"'{re.sub(*self.letters, found)}'"


def _compiled(words: str) -> re.Pattern[str]:
    """Whole words; a space matches any white space, line breaks included."""
    return re.compile(r"\b(?:" + words.replace(" ", r"\s+") + r")\b", re.IGNORECASE)


def _phrase(pattern: str, write: str, *allowed: str) -> Phrase:
    return Phrase(pattern=_compiled(pattern), write=write, allowed=_compiled("|".join(allowed)) if allowed else None)


def _spelling(pattern: str, letters: str, by: str) -> Phrase:
    return Phrase(pattern=_compiled(pattern), write="", letters=(letters, by))


_OWNER = r"(?:its|their|one's|his|her|our|(?:an?|the|this|that|each|every) [\w-]+'s|[\w-]+'s)"
# "of its own" ends a phrase; in "of its own class" it says something.
_ENDS = (
    r"(?! (?!(?:and|or|in|on|for|is|are|as|that|which|with|by|to|from|at|where|if|when|than|of|but|not|first|too|has|"
    r"have|may|can|was|were|must|so|while|without|after|before|does|do|takes?|each|only|there|here|then|a|the|an|per|it|"
    r"they)\b)[\w`])"
)
_HOLD = r"(?:held|holds?|holding)"
_GO = r"(?:goes|go|went|gone)"
_END = r"(?:was|were|is|are|has been|have been|had been)"

WORDS = (
    _phrase(r"(?:is|are|was|were|be|been|being) told", "'is reported'", r"\w+ told apart"),
    _phrase(r"told", "'reported'", r"(?:is|are|was|were|be|been|being) told", r"told apart"),
    _phrase(r"tells", "'reports' or 'warns'", r"tells(?: [\w']+){0,4} apart"),
    _phrase(r"tell", "'report'", r"tell(?: [\w']+){0,4} apart", r"tell-tale"),
    _phrase(r"untold", "'unreported'"),
    _phrase(r"what (?:it|they|he|she) (?:is|are|was|were) asked for", "'requested'"),
    _phrase(r"asked for", "'requested'", r"what (?:it|they|he|she) (?:is|are|was|were) asked for"),
    _phrase(r"asks? for", "'requests' or 'requires'"),
    _phrase(rf"{_GO} on", "'resumes' or 'continues'", rf"{_GO} on (?:the|an?|its|top|disk|stdout|stderr)"),
    _phrase(r"to the same bits", "'bit-identically'"),
    _phrase(rf"(?:that|which) {_END} ended", "'interrupted'", rf"(?:that|which) {_END} ended (?:by|with|because)"),
    _phrase(r"whole(?: |-)numbers?", "'integer'"),
    _phrase(r"texts", "'strings'"),
    _phrase(
        r"(?:an?|is|are|be|no|not|neither|nor|or) text",
        "'string', for a value of that type",
        r"\w+ text (?:files?|editors?|box|columns?|documents?|formats?|mode|blocks?|width|data|sets?|corpus)",
    ),
    _phrase(rf"{_HOLD}(?: [\w'`-]+){{0,4}} against", "'compared with'"),
    _phrase(r"judg(?:ed|es?|ing)", "'evaluated' or 'checked against its goal'"),
    _phrase(
        r"by hand",
        "'hand-written'",
        r"(?:compute|calculate|count|derive|check|do|done|copy|copied|edit|work|draw|solve)\w*(?: \w+){0,2} by hand",
    ),
    _phrase(
        r"behind",
        "'after'",
        r"(?:steps?|updates?|lag\w*|falls?|falling|fell|fallen|far) behind",
        r"behind (?:the scenes|an? (?:firewall|proxy))",
    ),
    _phrase(r"ahead of|in front of", "'before'", r"(?:steps?|updates?|far|rounds?) ahead of", r"ahead of time"),
    _phrase(
        r"alone",
        "'only' or 'by itself'",
        r"(?:leaves?|left|leaving|lets?|stands?|standing|runs?|running|ran)(?: [\w']+){0,3} alone",
    ),
    _phrase(r"extents?", "'size' or 'dimension'", r"to (?:the|some|an?|what|this|that|which)(?: \w+)? extent"),
    _phrase(r"how many axes", "'rank'"),
    _phrase(r"lacks?(?: an?| the| its| any)? (?:gradient )?rules?", "'has no gradient rule'"),
    _phrase(r"mend(?:ed|s|ing)?", "'fixed'"),
    _phrase(rf"of {_OWNER} own{_ENDS}", "'its own' or 'the recipe's'", r"of (?:its|their) own accord"),
    _phrase(r"(?:some|no|any)body(?:'s)?", "who it is: the user, another process, any result"),
    _phrase(r"what is no", "the noun: 'a file that is not ONNX'"),
    _phrase(r"(?:loss|losses|metric|value) that (?:is|are) (?:not a|no) number", "'a NaN loss'"),
    _phrase(r"(?:pass|passes|passed|meets?|met) no goal", "'fails every goal'"),
    _phrase(r"starts? without the arguments of", "'the previous component's arguments are dropped'"),
)
"""Phrases that the project used to use, and the term of the field for each."""

_ISE = (
    "author|binar|canonical|capital|categor|central|character|custom|decentral|denormal|discret|equal|factor|final|"
    "formal|general|initial|item|linear|local|material|maxim|memor|minim|modern|neutral|normal|optim|organ|parallel|"
    "penal|polar|prior|quant|random|real|recogn|regular|serial|special|stabil|standard|summar|symbol|synchron|token|"
    "util|vector|visual|emphas|apolog"
)
_OUR = "behavi|col|fav|hon|neighb|lab|rig|flav|end?eav"

SPELLING = (
    _spelling(rf"\w*(?:{_ISE})is(?:e|es|ed|er|ers|ing|ation|ations|able)", r"is(?=\w+$)", "iz"),
    _spelling(rf"\w*(?:{_OUR})our(?:s|ed|ing|al|able|hood|hoods|ite)?", r"our", "or"),
    _spelling(r"analys(?:e|ed|ing|er)", r"ys", "yz"),
    _spelling(r"(?:cent|lit|fib)re[sd]?", r"re", "er"),
    _spelling(r"(?:licen|defen|offen)ces?", r"c(?=es?$)", "s"),
    _spelling(r"(?:label|model|cancel|travel|signal|channel|level|total)l(?:ed|ing|er|ers)", r"ll", "l"),
    _spelling(r"grey", r"e", "a"),
    _spelling(r"artefacts?", r"arte", "arti"),
    _spelling(r"sceptic\w*", r"c(?=e)", "k"),
    _spelling(r"judgement|ageing", r"e(?=ment|ing)", ""),
    _spelling(r"fulfil", r"$", "l"),
    _spelling(r"whilst|amongst", r"st", ""),
    _spelling(r"programmes?", r"me", ""),
    _spelling(r"learnt", r"t", "ed"),
)
"""British spellings of common words. Registered names such as `normalise` are names and stay."""

PHRASES = (*WORDS, *SPELLING)
