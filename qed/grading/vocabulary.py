"""Tables of the commands and words that the parser knows."""

from __future__ import annotations

from fractions import Fraction


def _parse_pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=>") for pair in text.split())


def _parse_list(text: str) -> list[str]:
    return text.split()


def _parse_set(text: str) -> set[str]:
    return set(text.split())


COMMANDS = _parse_pairs(
    r"\dfrac=>\frac \tfrac=>\frac \cfrac=>\frac \dbinom=>\binom \tbinom=>\binom \le=>\leq \ge=>\geq \leqslant=>\leq "
    r"\geqslant=>\geq \leqq=>\leq \geqq=>\geq \lt=>< \gt=>> \ne=>\neq \cdot=>* \times=>* \ast=>* \div=>/ \lbrace=>\{ "
    r"\rbrace=>\} \lvert=>| \rvert=>| \vert=>| \mid=>| \|=>| \lVert=>| \rVert=>| \Vert=>| \lparen=>( \rparen=>) "
    r"\lbrack=>[ \rbrack=>] \langle=>( \rangle=>) \%=>% \$=>$ \varnothing=>\emptyset \varepsilon=>\epsilon "
    r"\varphi=>\phi \vartheta=>\theta \infin=>\infty \bullet=>* \degree=>\degrees \colon=>: \simeq=>\approx "
    r"\approxeq=>\approx \dots=>\ldots \cdots=>\ldots \dotsc=>\ldots \dotsb=>\ldots \dotsm=>\ldots \vdots=>\ldots "
    r"\arcctg=>\arccot \tg=>\tan \ctg=>\cot \lg=>\log \Re=>\mathbb \bar=>\overline \backslash=>\setminus "
    r"\sfrac=>\frac \nicefrac=>\frac \pounds=>£ \textsterling=>£ \euro=>€ \texteuro=>€ \yen=>¥ \textdollar=>$ "
    r"\mathdollar=>$ \overrightarrow=>\vec \thinspace=>\, \lor=>\or \wedge=>\land \vee=>\or \_=>_ \imath=>\i \ii=>\i"
)
IGNORED = _parse_set(
    r"\left \right \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \Biggl \Biggr \displaystyle \textstyle "
    r"\scriptstyle \limits \nolimits \, \; \: \! \> \quad \qquad \enspace \( \) \[ \] \/ \unit "
    r"\large \Large \LARGE \huge \Huge \small \normalsize \blacksquare \square \qed \Box \checkmark "
    r"\middle \mathopen \mathclose \mathrel \mathord \centering \noindent \strut \hfill \ "
    r"\tiny \scriptsize \footnotesize \scriptscriptstyle \mathstrut \null \par \newline \allowbreak \nobreak \notag "
    r"\nonumber \selectfont \negthinspace \medspace \thickspace \enskip "
) | {"\\ ", "\\\n", "\\\t"}
TEXT_COMMANDS = _parse_set(
    r"\text \textbf \textit \textrm \textnormal \mbox \mathrm \rm \textsf \texttt \hbox \operatorname \mathsf \emph "
    r"\textsuperscript \mathtt \textup \textmd \textsc"
)
WRAPPERS = _parse_set(
    r"\boxed \fbox \mathbf \boldsymbol \bm \bold \mathit \ensuremath \underline \bf \it \smash \rlap \llap "
    r"\mathnormal"
)
JOINERS = {"and", "or"}
FUNCTION_WORDS = {
    word: "\\" + word
    for word in _parse_set(
        "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh ln log exp sqrt gcd lcm max min pi "
        "floor ceil abs cbrt alpha beta gamma delta theta lambda sigma omega infty"
    )
}
FUNCTION_WORDS |= {
    "asin": "\\arcsin",
    "acos": "\\arccos",
    "atan": "\\arctan",
    "lg": "\\log",
    "infinity": "\\infty",
    "inf": "\\infty",
}
FUNCTION_WORDS |= {"cis": "\\cis", "det": "\\det", "cosec": "\\csc", "arcsec": "\\arcsec", "arccsc": "\\arccsc"}
FUNCTIONS = _parse_set(
    r"\sin \cos \tan \cot \sec \csc \arcsin \arccos \arctan \arccot \arcsec \arccsc \sinh \cosh \tanh \ln \log \exp "
    r"\gcd \lcm \max \min \det \cis \floor \ceil \abs \cbrt"
)
SYMBOLS = _parse_set(
    r"\alpha \beta \gamma \delta \epsilon \zeta \eta \theta \iota \kappa \lambda \mu \nu \xi \rho \sigma \tau \upsilon "
    r"\phi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Upsilon \Phi \Psi \Omega \ell \emptyset "
    r"\hbar \partial \nabla \top \jmath"
)
DECORATIONS = _parse_set(r"\overline \vec \hat \tilde \widehat \dot \ddot \widetilde \overleftrightarrow \overset")
BIG = {"\\sum", "\\prod", "\\int", "\\lim", "\\iint", "\\oint", "\\bigcup", "\\bigcap"}
RELATIONS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "\\leq": "<=", "<=": "<=", "\\geq": ">=", ">=": ">=", "\\neq": "!=",
    "!=": "!=", "\\in": "in", "\\approx": "~", "\\equiv": "==",
}  # fmt: skip
INEQUALITIES = {"<", "<=", ">", ">=", "!="}

NUMBER_WORDS = {
    word: value
    for value, word in enumerate(
        _parse_list(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen twenty"
        )
    )
} | {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
MULTIPLES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
MULTIPLES |= {"lakh": 10**5, "crore": 10**7, "grand": 10**3}
MULTIPLES |= {word + "s": value for word, value in MULTIPLES.items()}
MULTIPLES |= {"万": 10**4, "亿": 10**8, "万亿": 10**12, "tausend": 10**3, "millionen": 10**6, "milliarden": 10**9}
ORDINALS = {"st", "nd", "rd", "th"}
# Words after a number that are neither a unit nor a counted noun.
NO_UNITS = _parse_set(
    "is not no if plus minus less most least squared cubed factorial half over than else for in to by from "
    "mod modulo only the a an of but else none nan true false import lambda answer wrong correct each touch rm echo "
    "sudo exit quit print exec eval return pass def class open system os sys while try raise assert yield del global "
    "with as at "
    # what denies, doubts or changes the number before it
    "incorrect rejected reject extraneous excluded invalid inadmissible discarded spurious untrue erroneous mistaken "
    "never nor neither fails unless maybe perhaps probably possibly doubled tripled quadrupled halved negated "
    # the same, and numbers, in other languages
    "nicht kein keine oder und ist bis mal mehr weniger hundert hunderte tausende milliarde non pas pour plus moins ou "
    "est mille milliard milliards cent cents mil millones cientos ciento miles veces menos más que мил не нет или до "
    "falsch ungültig niemals vielleicht faux jamais falso incorrecto nunca quizás неверно неправильно никогда "
    "тысяч тысяча тысячи миллион миллиона миллионов миллиард миллиарда миллиардов раз раза"
)
# A noun in Chinese characters that begins with one of these may change the number: 5万元 is 50,000 yuan.
CHANGING = set("万亿千百十半分成倍多余几两第不非没无或和到至以之上下折错吗")

# Words after a unit that do not change it.
MEASURED = _parse_set("long tall wide deep high old away total altogether more extra")
# Words that begin a phrase after a counted noun: 24 students in the class.
PHRASES = _parse_set("in of from on at for")
ARTICLES = _parse_set("the a an their his her its all this that each")

# dimension: its units, each with its factor to the base unit
_UNITS = {
    "length": "m meter metre 米=1 cm centimeter centimetre 厘米=1/100 mm millimeter millimetre 毫米=1/1000 "
    "km kilometer kilometre 千米 公里=1000 in inch inche=127/5000 ft foot feet=381/1250 yd yard=1143/1250 "
    "mi mile=201168/125 "
    "μm micrometer micron=1/1000000 pc parsec=30856775814913673 kpc=30856775814913673000 "
    "mpc=30856775814913673000000 ly lightyear=9460730472580800 nm nanometer=1/1000000000 dm decimeter=1/10 "
    "au=149597870700 angstrom=1/10000000000",
    "mass": "g gram 克=1/1000 kg kilogram 千克 公斤=1 mg milligram=1/1000000 lb lbs pound=45359237/100000000 "
    "oz ounce=45359237/1600000000 "
    "tonne=1000 ton=90718474/100000",
    "time": "s sec second 秒=1 min minute 分钟=60 h hr hour 小时=3600 day 天=86400 "
    "week wk=604800 ms millisecond=1/1000",
    "year": "year yr=1 month mo=1/12 decade=10 centurie century=100",
    "money": "$ dollar usd buck=1 cent penny pennie=1/100 quarter=1/4 dime=1/10 nickel=1/20",
    "euro": "€ euro eur=1",
    "sterling": "£ gbp=1",
    "yuan": "yuan rmb cny 元=1",
    "yen": "¥ yen jpy=1",
    "rupee": "₹ rupee rs=1",
    "volume": "l liter litre=1 ml milliliter millilitre=1/1000 gallon gal=473176473/125000000 "
    "quart qt=473176473/500000000 "
    "pint pt=473176473/1000000000 cup=473176473/2000000000",
    "frequency": "hz hertz=1 khz=1000 mhz=1000000 ghz=1000000000",
    "energy": "j joule=1 kj kilojoule=1000 ev=1602176634/10000000000000000000000000000 cal calorie=4184/1000 kcal=4184 "
    "kwh=3600000",
    "power": "w watt=1 kw kilowatt=1000 mw=1000000",
    "force": "n newton=1",
    "pressure": "pa pascal=1 kpa=1000 atm=101325",
    "voltage": "v volt=1 mv=1/1000",
    "current": "a amp ampere=1",
    "resistance": "ohm=1 kohm=1000",
    "temperature": "k kelvin=1",
    "celsius": "celsius=1",
    "fahrenheit": "fahrenheit=1",
    "amount": "mol mole=1",
    "charge": "c coulomb=1",
    "field": "tesla=1",
    "degree": "degree deg 度=1",
    "radian": "radian rad=1",
    "percent": "% percent pct percentage percents prozent=1",
    "": "unit=1",
    "am": "am=1",
    "pm": "pm=1",
}


def _build_units() -> dict[str, tuple[str, Fraction]]:
    table: dict[str, tuple[str, Fraction]] = {}
    for dimension, row in _UNITS.items():
        names: list[str] = []
        for entry in row.split():
            name, _, factor = entry.partition("=")
            names.append(name)
            if factor:
                table |= dict.fromkeys(names, (dimension, Fraction(factor)))
                names = []
    return table


# Units whose symbols are written in this case only, with the prefixes that they may have.
_SYMBOLS = {
    "voltage": "V n μ m k M", "current": "A n μ m k", "power": "W n μ m k M G", "charge": "C p n μ m",
    "force": "N m k M",
    "energy": "J μ m k M G", "frequency": "Hz m k M G T", "pressure": "Pa m h k M G", "field": "T n μ m",
    "capacitance": "F p n μ m", "flux": "Wb μ m", "dose": "Gy μ m", "equivalent": "Sv μ m", "activity": "Bq k M G",
    "spectral": "Jy μ m k", "storage": "B k K M G T", "volume": "L μ m d", "length": "m f n μ", "time": "s f p n μ",
    "luminous": "lm", "illuminance": "lx", "level": "dB", "horsepower": "hp",
}  # fmt: skip
_PREFIXES = {"f": -15, "p": -12, "n": -9, "μ": -6, "m": -3, "d": -1, "h": 2, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12}


def _build_symbols() -> dict[str, tuple[str, Fraction]]:
    table: dict[str, tuple[str, Fraction]] = {}
    for dimension, row in _SYMBOLS.items():
        symbol, *prefixes = row.split()
        table[symbol] = (dimension, Fraction(1))
        table |= {prefix + symbol: (dimension, Fraction(10) ** _PREFIXES[prefix]) for prefix in prefixes}
    del table["B"]  # 5 B may be billions
    return table


UNITS = _build_units()
SYMBOL_UNITS = _build_symbols()
# Symbols whose capitals have another value: mW and MW.
CASED_UNITS = {
    name
    for name, value in SYMBOL_UNITS.items()
    if any(other.casefold() == name.casefold() and SYMBOL_UNITS[other] != value for other in SYMBOL_UNITS)
}
RATES = {"mph": ("mile", "hour"), "kph": ("km", "hour"), "kmh": ("km", "hour"), "fps": ("foot", "second")}
RATES |= {"mpg": ("mile", "gallon"), "wpm": ("word", "minute"), "rpm": ("revolution", "minute")}
LETTER_UNITS = set("mgshlLJNVWKAdDCTF")
# Counted nouns of three letters, and plurals of abbreviations. Other letters after a number are variables.
SHORT_NOUNS = _parse_set(
    "men man box boy egg pen cat dog cow pig hen car bus cup bag can jar kid toy key map hat pie pot nut fan bed pin "
    "mug cap tie job lap ant bee fox rat bat day TVs CDs DVDs PCs pts"
)
POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
UNIT_WORDS = {name + plural for name in UNITS if name.isalpha() for plural in ("", "s")} | set(RATES) | set(POWERS)
UNIT_WORDS |= {name for name in SYMBOL_UNITS if len(name) > 1}
UNIT_WORDS |= SHORT_NOUNS | {"per", "inches", "centuries", "pennies"} | ORDINALS | set(MULTIPLES)
# Symbols that are units after a plain number even in italics, with or without a space. Others of two or three letters
# are products of variables there, unless the other answer has a unit: 2nm, 3rs.
GLUED_UNITS = _parse_set(
    "cm cms mm km kms kg kgs ft lb oz lbs min mins hrs mph kph mL kJ kW kV Hz kHz MHz GHz kPa km/h"
)
SPACED_UNITS = (
    GLUED_UNITS
    | SHORT_NOUNS
    | _parse_set(
        "mg ml hr yd mi in am pm yr yrs eV day cup ton yen amp ohm rad deg per sec secs mol gal cal usd USD "
        "eur EUR gbp GBP rmb RMB cny jpy atm kmh fps pct sq cu mA dB kWh KB MB GB TB mpg wpm WPM rpm RPM"
    )
)
