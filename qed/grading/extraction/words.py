"""Words that show what a sentence does: it announces, asks, denies, hedges, retracts or checks an answer.

Each table has several languages. Words of languages without spaces are found anywhere in a text, others only as words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

# Characters besides the capital that Python's re.IGNORECASE equates with a letter: long s, the Kelvin sign, Turkish i …
FOLDED = {
    "s": "\u017f",
    "k": "\u212a",
    "i": "\u0130\u0131",
    "ε": "\u03f5",
    "в": "\u1c80",
    "д": "\u1c81",
    "о": "\u1c82",
    "с": "\u1c83",
    "т": "\u1c84\u1c85",
}
QUANTIFIERS = ("?", "*", "+", "{")
NO_SPACES = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def compile_words(words: str) -> re.Pattern[str]:
    """Compile words and phrases, separated by a bar, into one pattern; a language without spaces has no word ends."""
    parts, depth = [""], 0
    for sign in words:
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    runs = groupby((part.strip() for part in parts), key=lambda part: NO_SPACES.search(part) is not None)
    # Most places are within a word, so the test for the beginning of a word is done once for a run of alternatives.
    joined = [_join_words(run) if anywhere else rf"(?<!\w)(?:{_join_words(run)})(?!\w)" for anywhere, run in runs]
    return re.compile("|".join(joined), re.IGNORECASE)


def _join_words(words: Iterable[str]) -> str:
    """Join words, in their order, into one expression in which those with the same first letter share it.

    When Python's engine ignores case, it tries every word at every place, but skips a word that begins with a character
    set without the letter at that place.
    """
    joined: list[str] = []
    for plain, run in groupby(words, key=lambda word: word[:1].isalpha() and word[1:2] not in QUANTIFIERS):
        if not plain:
            joined += run
            continue
        rests: dict[str, list[str]] = {}
        for word in run:
            rests.setdefault(word[0].lower(), []).append(word[1:])
        joined += [f"{_match_letter(first)}(?:{'|'.join(group)})" for first, group in rests.items()]
    return "|".join(joined)


def _match_letter(letter: str) -> str:
    """Return a case-sensitive character set of all characters that equal a letter when case is ignored."""
    return f"(?-i:[{letter}{letter.upper()}{FOLDED.get(letter, '')}])"


def list_words(words: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(words.split())


# Words for an answer. NO_ANSWER excludes phrases that contain them, such as "answer choices".
ANSWER = compile_words(
    r"answers?|ans|i (?:pick|choose|select|go with|settle on)|correct (?:option|choice)(?! is (?:not|"
    r"wrong))|答案|答え|解答|正解|故选|故選|选择|選択|"
    r"应选|應選|答(?=[:：])"
    r"|정답|답(?=은|:|：)|ответ(?:ом)?|відповідь|respuesta|resposta|réponse|reponse|risposta|antwort|antwoord"
    r"|odpowiedź|odpověď|svaret|svar|cevap|cevabı|yanıt|đáp án|đáp số|jawaban(?:nya)?|απάντηση|răspuns(?:ul)?"
    r"|الإجابة|الاجابة|الجواب|جواب|إجابة|پاسخ|उत्तर|উত্তর|תשובה|התשובה|คำตอบ|vastaus|válasz"
)
# After an announcement, up to the answer: to the question, of part 2, in simplest form.
CONNECTION = re.compile(
    r"(?:[^\S\n]|[-=]>|[:：=→⇒➜*]|[—–](?![\d$\\(.√π])|\\(?:Rightarrow|implies|to|rightarrow)\b|"
    r"(?:is|are|was|will be|should be|must be|would be|has to be|comes out (?:to be|to|as)|turns out to be|equals|be|"
    r"therefore|thus|hence|simply|just|then|exactly|clearly|indeed|also|still|indeed|definitely|obviously|of course|"
    r"given by|equal to|obtained as|approximately|about|roughly|"
    r"是|为|為|應為|应为|应该是|應該是|は|が|은|는|"
    r"это|есть|равен|равна|равно|таков|будет|es|es igual a|son|è|é|são|sono|est|sont|ist|lautet|sind|beträgt|"
    r"igual a|é igual a|égale à|jest|to|je|är|er|on|είναι|هي|هو|है|হল|là|adalah|este|හ|คือ)(?!\w)"
    r"|是|为|為|は|은|는|คือ){0,12}",
    re.IGNORECASE,
)
COPULA = compile_words(
    r"is|are|was|were|be|it's|that's|there's|he's|she's|equals?|equal to|gives?|gave|gets?|got|yields?|"
    r"yielded|makes?|"
    r"made|totals?|becomes?|became|leaves?|left with|remains?|needs?|needed|costs?|pays?|paid|earns?|"
    r"earned|contains?|"
    r"requires?|takes?|took|spends?|spent|sells?|sold|saves?|saved|receives?|received|produces?|produced|travels?|"
    r"weighs?|obtain|obtained|obtains|find|found|has|have|had|holds?|reads?|owes?|owns?|scores?|scored|collects?|"
    r"collected|bought|buys?|ate|eats?|drinks?|drank|charges?|lasts?|measures?|amounts? to|comes? to|adds? up to|"
    r"sums? to|simplif(?:y|ies) to|reduces? to|evaluates? to|converges? to|diverges? to|results? in|results? to|"
    r"works? out to|reach|reaches|reached|conclude|conclude that|"
    r"is:|es|son|est|sont|vaut|valent|ist|sind|beträgt|ergibt|gibt|é|são|vale|è|sono|равен|равна|равно|равны|"
    r"составляет|будет|получаем|получится|jest|wynosi|je|är|er|zijn|bedraagt|είναι|هو|هي|يساوي|تساوي|obtenemos|"
    r"obtenemos que|tiene|hay|obtém|obtemos|há|tem|il y a|obtient|obtenons|erhalten|haben|hat|otteniamo|"
    r"等于|等於|是|为|為|得到|得|共有|有|一共|は|が|은|는|이|가|=|≈|\\approx|→|⇒|:|："
)
NOT = compile_words(
    r"not|isn't|isnt|aren't|wasn't|weren't|doesn't|don't|didn't|won't|wouldn't|shouldn't|can't|cannot|couldn't|never|"
    r"neither|nor|no|anything (?:but|except)|everything (?:but|except)|"
    r"\\neq?|rather than|instead of|used to be|reject|rejecting|discard|discarding|"
    r"exclude|excluding|eliminate|ruling out|rule out|isn’t|aren’t|wasn’t|doesn’t|don’t|can’t|"
    r"不是|不等于|不等於|并非|並非|不为|不為|不对|不是的|非|没有|ではない|ではありません|じゃない|でない|"
    r"아니다|아닙니다|아니라|아닌|아니|"
    r"не|нет|nicht|kein|keine|keinen|weder|noch|ne|n'est pas|n’est pas|pas|"
    r"(?<!jibu )ni|tampoco|nunca|jamais|não|nao|nem|"
    r"non|né|nie|niet|geen|inte|ikke|ei|değil|tidak|bukan|không|δεν|ليس|ليست|ليسا|لا|नहीं|nu|není|nejsou|nije|nem|"
    r"nincs|לא|אינו|אינה|ไม่"
)
# Negations after the value that they deny.
WRONG = compile_words(
    r"wrong|a contradiction|contradiction|contradicts|too (?:small|large|big|low|high|many|few|much|"
    r"little|short|long)|incorrect|false|mistaken|"
    r"ruled out|rejected|discarded|eliminated|excluded|extraneous|invalid|not correct|"
    r"is impossible|错误|错|錯|不对|不正确|不正確|間違い|間違って|誤り|違います|틀렸|틀린|틀립|오답|"
    r"неверно|неверный|неверен|неправильно|"
    r"неправильный|неправильный|falsch|inkorrekt|faux|fausse|incorrecte?|incorrect[oa]s?|erróne[oa]|equivocad[oa]|"
    r"errad[oa]|sbagliat[oa]|errat[oa]|błędn[aey]|fout|onjuist|yanlış|salah|sai|λάθος|خطأ|خاطئ|خاطئة|गलत|ग़लत|שגוי"
)
HEDGE = compile_words(
    r"maybe|perhaps|possibly|"
    r"(?:might|could|may) (?:well |also |still |instead )?(?:be|equal)(?= (?:either |about |x = |option "
    r")?(?:[$\\(\d*-]|[A-J](?!\w)))"
    r"|not sure|unsure|uncertain|unclear|no idea|"
    r"don't know|do not know|can't decide|cannot decide|hard to say|don’t know|or so|something like|either way|"
    r"也许|或许|可能(?!性|的)|大概|不确定|不知道|不確定|たぶん|多分|かもしれ|おそらく|わから|아마|모르|"
    r"vielleicht|möglicherweise|eventuell|weiß nicht|peut-être|sais pas|quizás?|tal vez|puede que|a lo mejor|no sé|"
    r"может быть|возможно|наверное|не знаю|вероятно|talvez|pode ser|não sei|forse|magari|non so|może|misschien|"
    r"kanske|kanskje|belki|mungkin|có thể|có lẽ|ίσως|ربما|لا أعرف|शायद|אולי"
)
BUT = compile_words(
    r"(?<!all )(?<!anything )(?<!everything )(?<!none )(?<!nothing )but|however|instead(?! of)|aber|sondern|mais|"
    r"pero|sino|no obstante|но|а(?= )|mas|porém|ma|bensì|ale|maar|"
    r"但是?|而是|しかし|"
    r"하지만|그러나|لكن|بل|लेकिन|बल्कि|ama|fakat|tetapi|nhưng"
)
SO = compile_words(
    r"(?<!or )so(?! that(?!'))|i\.e\.|namely|then|therefore|thus|hence|consequently|which gives|giving|it "
    r"follows that|we "
    r"conclude that|in conclusion|finally|"
    r"overall|in summary|(?<!could )(?<!might )(?<!may )(?<![\d$)}] and )also|daher|somit|"
    r"folglich|deshalb|donc|ainsi|por lo tanto|por tanto|"
    r"entonces|así que|luego|"
    r"portanto|logo|então|quindi|dunque|perciò|значит|следовательно|итак|поэтому|таким образом|więc|zatem|dus|alltså|"
    r"所以|因此|故|因而|于是|よって|したがって|ゆえに|따라서|그러므로|그래서|إذن|لذلك|وبالتالي|अतः|इसलिए|"
    r"∴|\\therefore|"
    r"⇒|\\Rightarrow|\\implies|\\Longrightarrow"
)
BECAUSE = compile_words(
    r"because|since|as required|so that|given that|assuming|provided|whereas|while|although|though|"
    r"weil|da|denn|parce que|car|puisque|porque|ya que|puesto que|pois|perché|poiché|потому что|так как|поскольку|"
    r"因为|因為|ので|から|왜냐하면|لأن|क्योंकि|çünkü|omdat|ponieważ|karena|vì"
)
# Words after which a number belongs to a circumstance and is not the answer.
CIRCUMSTANCE = compile_words(
    r"because|since|as|where|which|who|that|when|if|after|before|for|per|from|with|out|of|to|than|while|"
    r"given|by|in|on|"
    r"at|during|until|within|among|between|through|into|when|whose|using|without|without|considering|divided among|"
    r"every|each|instead|via|because of|so that|assuming|provided|although|though|unless|including|excluding|"
    r"für|von|mit|bei|nach|aus|pour|de|du|des|avec|après|para|con|después|por|desde|em|após|per|di|dopo|из|для|с|за|"
    r"после|при|в|на"
)
BOUND = compile_words(
    r"(?:double|triple) of|half of|half|twice|double|triple|thrice|close to|near|"
    r"or equal to|proportional to|ends? (?:in|with)|begins? with|"
    r"starts? with|sections?|steps?|equations?|problems?|questions?|theorem|lemma|chapter|page|figure|"
    r"example|exercise|"
    r"(?:negative|opposite|reciprocal|inverse|square|cube|factorial|multiple|divisor|power|third|quarter) "
    r"of|(?:more|less|fewer|greater|larger|smaller|bigger|higher|lower|other|better|worse) than|over|under|"
    r"exceeds?|above|"
    r"below|no more than|no less than|no fewer than|up to|almost|nearly|at most|at least|bounded by|a multiple of|"
    r"multiples of|divisible by|a factor of|a power of|between|mehr als|weniger als|mindestens|höchstens|"
    r"fast|(?:größer|kleiner|höher|niedriger) als|(?:supérieure?|inférieure?|égale? ou supérieure?) à|"
    r"(?:mayor|menor|maior) (?:que|o igual a)|(?:maggiore|minore) di|(?:groter|kleiner) dan|"
    r"(?:większ|mniejsz)[aey] (?:od|niż)|ein halb von|plus de|"
    r"moins de|au moins|au plus|más de|menos de|al menos|mais de|pelo menos|più di|meno di|almeno|больше|"
    r"меньше|более|"
    r"менее|не менее|не более|大于|小于|大於|小於|至少|至多|超过|以上|以下|未満|不到|최소|최대|이상|이하"
)
FILLER = compile_words(
    r"therefore|thus|hence|simply|just|then|exactly|precisely|about|approximately|approx|roughly|around|"
    r"equal to|given by|"
    r"as follows|still|also|only|now|clearly|indeed|in fact|actually|both|either|the|equal|a total of|total of|a|an|"
    r"as|following|of course|obviously|definitely|certainly|surely|probably|likely|likewise|therefore|"
    r"currently|to be|"
    r"be|is|are|was|it|it's|to|out|out to be|or|and|option|choice|answer|letter|number|numbers|value|"
    r"values|number is|"
    r"ungefähr|genau|etwa|environ|exactement|aproximadamente|exactamente|примерно|ровно|равен|равно|约|約|大约|约为|"
    r"here|we have|we get|i get|you get|we obtain|called"
)
REMARK = re.compile(
    r"\W{0,3}(?:it took me|i used|(?:i )?hope (?:this|that|it|you)|let me know|feel free|please|thank|"
    r"good luck|happy to|glad|"
    r"if you (?:have|need|want|would|found)|(?:side |foot ?)?note\b|remark\b|p\.?s\b|disclaimer|warning|cheers|enjoy|"
    r"have a (?:nice|good|great)|this (?:completes|concludes|is the end|problem)|(?:and )?(?:we are|we're|"
    r"i am|i'm) done|"
    r"q\.?e\.?d\b|end of|would you like|do you (?:want|have|need)|source|references?|difficulty|topic|"
    r"tags?|confidence|"
    r"time taken|word count|tokens?|score|you can (?:verify|check)|keep (?:up|practi)|great (?:job|question|work)|"
    r"sincerely|best regards|regards|espero|j'espère|ich hoffe|希望|надеюсь|\[note|\(note|i am (?:\d+|"
    r"about|very|quite)|"
    r"i'm (?:\d+|about|very|quite) ?%?|my confidence|the (?:difficulty|confidence))",
    re.IGNORECASE,
)
CHECK = re.compile(
    r"\W{0,3}(?:(?:quick |sanity |double[- ]?|final )?(?:check|checks|checking|verification|verify|"
    r"verifying|proof|test)"
    r"\b(?! ?(?:shows|gives))|"
    r"(?:let me|let's|i should|i need to|we should|we can|we may|you can|to|i will|i'll|one can|now,? let "
    r"us|let us|now) "
    r"(?:also )?(?:quickly )?(?:double[- ]?)?(?:check|verify|confirm|test)\b|"
    r"as a check|to double[- ]check|substitut(?:e|ing) back|plugging (?:back|this|it|in)|indeed\b|this (?:checks out|"
    r"matches|agrees|is consistent|works|makes sense)|that (?:checks out|works|matches)|probe\b|kontrolle|"
    r"überprüfung|"
    r"vérification|verificación|comprobación|проверка|验证|驗證|检验|検算|검산|verifica\b|verificação|التحقق)",
    re.IGNORECASE,
)
GIVING_UP = re.compile(
    r"\b(?:i (?:do not|don't|don’t|cannot|can't|can’t|could not|couldn't) (?:know|solve|answer|find|"
    r"determine|figure|decide|"
    r"tell)|i give up|i have no idea|i(?:'m| am) (?:not sure|unable|stuck|lost)|no idea)\b",
    re.IGNORECASE,
)
# A marker that retracts what was said before. The second kind does so only if something is stated after it.
RETRACTION = re.compile(
    r"\b(?:wait,? no|no,? wait|oh,? wait|wait,? (?:that(?:'s| is|’s)|this(?:'s| is)|it(?:'s| is)) "
    r"(?:wrong|not|incorrect)|"
    r"(?:that|this|it|which)(?:'s| is|’s| was) (?:wrong|incorrect|not right|not correct|a mistake|an error|mistaken)|"
    r"(?:that|this|it) (?:isn't|isn’t|wasn't|can't be|cannot be|is not|was not) (?:right|correct)|"
    r"which (?:is|was) (?:impossible|absurd|nonsense)|just kidding|scratch that|strike that|i made (?:a|"
    r"an) (?:\w+ )?(?:mistake|error|slip)|i was wrong|i take (?:that|it) back|"
    r"my mistake|let me (?:correct|redo|recompute|recalculate|start over|try again|fix)|correction|oops|whoops|"
    r"i misread|i miscounted|i miscalculated|on second thought|nein,? (?:doch )?|non,? attendez|moment,? nein|"
    r"я ошиб(?:ся|лась))(?!\w)|更正|等等|不对，|不对,|我错了|算错了|間違えた|訂正|정정",
    re.IGNORECASE,
)
SOFT_RETRACTION = re.compile(r"(?<!\w)(?:wait|actually|hmm+|hold on|sorry|i mean|or rather|no,)(?!\w)", re.IGNORECASE)
HYPOTHESIS = re.compile(
    r"\W{0,3}(?:suppose|assume|assuming|let(?! us|'s| me)|imagine|consider|define|denote|say|angenommen|"
    r"sei|supposons|"
    r"soit|supongamos|"
    r"sea|пусть|предположим|设|設|假设)\b",
    re.IGNORECASE,
)
