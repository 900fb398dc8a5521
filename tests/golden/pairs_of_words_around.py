"""Pairs of answers with words around them: joined equations, domains, rates, denials, denominators.

One pair a line, `gold ## answer`; ONE_WAY holds for a gold and an answer in this order only.
"""

ONE_WAY = r"""
# words between equations stand instead of a comma
2, 3 ## x = 2 \quad \text{or} \quad x = 3
2, 3 ## x = 2 \qquad \text{or} \qquad x = 3
2, 3 ## x = 2 \quad or \quad x = 3
2, 3 ## x = 2 \quad \text{and} \quad x = 3
2, 3 ## x = 2 \quad \textrm{or} \quad x = 3
2, 3 ## x = 2 \quad \mathrm{or} \quad x = 3
2, 3 ## x = 2\quad\text{or}\quad x = 3
2, 3 ## x = 2 \text{ or }\quad x = 3
A=5, B=2 ## A = 5 \quad \text{and} \quad B = 2
(6,31) ## x=6 \quad\text{and}\quad y=31
1,2,3 ## x=1\quad\text{or}\quad x=2\quad\text{or}\quad x=3
a=1, b=2 ## a=1 \quad b=2
2, 3 ## x = 2, \quad \text{or} \quad x = 3
# a function of all real numbers
f(x)=2x ## f(x)=2x \text{ for all } x
f(x)=2x ## f(x)=2x \text{ for all } x \in \mathbb{R}
f(x)=2x ## f(x)=2x \quad \forall x \in \mathbb R
f(x)=2x ## f(x)=2x, \forall x \in \mathbb R
f(x)=2x ## f(x)=2x \text{ for every } x\in\mathbb R
f(x)=2x ## f(x)=2x \text{ for every real } x
f(x)=x ## f(x)=x \text{ for all real } x
f(x)=x ## f(x)=x, for all x
f(x)=x ## f(x) = x for all real numbers x
f(x)=x ## f(x) = x \text{ for all real numbers } x.
f(x)=x ## f(x) = x \quad \text{for all } x \in \mathbb{R}
f(x)=2x ## f(x)=2x\quad\forall x\in\mathbb R
f(x)=2x ## f(x)=2x (for all x)
f(x)=2x ## f(x) = 2x \forall x
f(x)=2x \text{ for all } x \in \mathbb{R} ## f(x)=2x
f(x)=2x \text{ for all } x \in \mathbb{R} ## 2x
f(x)=0, f(x)=x ## f(x)=0 \text{ and } f(x)=x \text{ for all } x
f(x)=\sin x ## f(x)=\sin x \text{ for all } x
# all real numbers but one
(-\infty,0)\cup(0,\infty) ## \text{All real numbers except } x = 0
(-\infty,0)\cup(0,\infty) ## All reals except 0
(-\infty,0)\cup(0,\infty) ## Every real number except 0
(-\infty,0)\cup(0,\infty) ## \text{all real numbers except } x = 0
# the word each at the end
12 ## 12 each
12 ## \$12 each
12 ## 12 apples each
12 ## 12\text{ each}
12 ## \$12\text{ each}
12 ## \$12.00 each
3.50 ## 3.50 each
3.50 ## \$3.50 each
# a unit behind a slash
12 ## \$12/hour
12 ## 12/\text{hour}
12 ## 12/hr
12 ## \$12\text{/hour}
12 ## 12 minutes/day
12 ## 12 miles/hour
12 ## 12\text{/hour}
12 ## 12/hour
12 ## \$12/week
12 \text{ per hour} ## 12/hour
12 \text{ dollars} ## \$12/hour
12 \text{ km/h} ## 12 km/hour
12 \text{ dollars/hour} ## 12 dollars/hour
\frac{2r}{h} ## 2/hr
\frac{2g}{k} ## 2/kg
12 ## x = \$12/hour
1200 ## \$1,200/month
1200 ## \$1200\text{/month}
12000000 ## \$12 million/year
# units and nouns that stay
12 ## \$12 \text{ per hour}
12 ## \$12 / hour
5 ## \$5 per dozen
5 ## \$5 per thousand
5 ## 5 eggs per dozen
5 ## 5 per dozen
5 ## 5 per day
5 ## 5 pairs
5 ## 5 apples
5 ## 5 tens
# integers from a number on
n\ge3 ## n\geq 3, \quad n\in\mathbb{N}
n\ge3 ## \text{All integers } n\ge3
n \geq 3, n\in\mathbb{Z} ## n\ge 3
n\ge3 ## \text{all integers } n \geq 3
n\ge3 ## \text{all positive integers } n\ge3
n\ge3 ## n\ge 3, n\in\mathbb{Z}
n\ge3 ## for all integers n\ge3
# a base in a box or in braces
\boxed{52_8} ## 52_8
52_8 ## \boxed{52_8}
52_8 ## {52_8}
52_8 ## \boxed{52_{8}}
52_8 ## {52}_8
# a full stop after an exponent
4.5e33 ## 4.5e33.
4.5e33 ## 4.5e33
4.5e33 ## $4.5e33$.
4.5 \times 10^{33} ## 4.5e33.
# multiples and denominators in words
5000000 ## 5 millions
500000 ## 5 lakh
50000000 ## 5 crore
5000 ## 5 grand
60 ## 5 dozens
5/3 ## 5 thirds
\frac{5}{2} ## 5 halves
0.5 ## 5 tenths
0.05 ## 5 hundredths
"""

DIFFERENT = r"""
# another equation, or none
2, 3 ## x = 2 \quad \text{or} \quad x = 4
2, 3 ## x = 2 \quad \text{or}
(6,31) ## x=31 \quad\text{and}\quad y=6
A=5, B=2 ## A = 2 \quad \text{and} \quad B = 5
2, 3 ## x = 2 \quad \text{nor} \quad x = 3
2, 3 ## x \ne 2 \quad \text{or} \quad x = 3
# a smaller domain, another name or a denial
f(x)=2x ## f(x)=2x \text{ for all } x > 0
f(x)=2x ## f(x)=2x \text{ for all } x \in \mathbb{Z}
f(x)=2x ## f(x)=2x \text{ for all } x \in \mathbb{R}^+
f(x)=2x ## f(x)=2x \text{ for all positive } x
f(x)=2x ## f(x)=2x \text{ for all } x \neq 0
f(x)=2x ## f(x)=2x \text{ for all } y
f(x)=2x ## f(x)=3x \text{ for all } x
f(x)=2x ## f(x)=2x \text{ for all integers } x
f(x)=2x ## f(x)=2x \text{ not for all } x
f(x)=2x ## f(x)\ne 2x \text{ for all } x
f(x)=2x ## f(x)=2x \text{ fails for all } x
f(x)=2x ## f(x)=2x \text{ for } x
f(x)=2x ## f(x)=2x \text{ for all } x \in \mathbb{Q}
f(x)=2x ## f(x)=2x \text{ for all } x \in (0,1)
f(x)=2x ## f(x)=2x \text{ for all } x \in \mathbb{R}, x \ne 0
f(x)=2x ## f(x)=2x \text{ for almost all } x
f(x)=2x ## f(x)=2x \text{ for not all } x
f(x)=2x ## f(x)=2x \text{ or } f(x)=3x \text{ for all } x
# another set of numbers
(-\infty,1)\cup(1,\infty) ## \text{All real numbers except } x = 0
(-\infty,\infty) ## All reals except 0
(-\infty,0)\cup(0,\infty) ## \text{not every real number except } 0
(-\infty,0)\cup(0,\infty) ## \text{All real numbers}
(-\infty,0)\cup(0,\infty) ## \text{All real numbers except } 0, 1
# another price, and each before another word
12 ## 13 each
12 ## each
12 ## 12 each other
12 ## 6 each
12 ## \$13/hour
# another rate, and a quotient of names
12 ## 12/h
12 ## 12/x
12 ## 12/pi
12 ## 12/\text{foo}
12 \text{ per day} ## 12/hour
12 \text{ miles} ## 12 hours/mile
12 \text{ miles per hour} ## 12 miles/day
12/x ## 12
12/hr ## 12/hk
12 ## 12/ms
12 ## 12/mv
# another numeral
52_8 ## \boxed{52_9}
52_8 ## {53_8}
4.5e33 ## 4.5e34.
4.5e33 ## 4.5e33.5
\frac{2}{hr} ## 2
# what denies, doubts or changes the number before it
5 ## 5 vielleicht
5 ## 5 doubled apples
5 ## 5 (incorrect)
5 ## 5 rejected
5 ## 5 (extraneous)
5 ## 5 (excluded)
5 ## 5 invalid
5 ## 5 unless
5 ## 5 never
5 ## 5 maybe
5 ## 5 (probably)
5 ## 5 doubled
5 ## 5 negated
5 ## 5 untrue
5 ## 5错误
5 ## 5吗
5 ## 5 falsch
# other integers
n\ge3 ## \text{all integers } n \geq 3 \text{ that are odd}
n\ge3 ## \text{all integers } n \geq 3 \text{ except } 5
n\ge3 ## \text{all odd integers } n \geq 3
n\ge3 ## \text{all integers } n > 3
n\ge3 ## \text{no integers } n \geq 3
n\ge-3 ## \text{all positive integers } n\ge -3
n\ge3 ## \text{all integers } n \geq 4
n\ge3 ## \text{all negative integers } n\ge3
x\ge3 ## \text{all integers } x \geq 3
n\ge3 ## n\ge 3, n\in\mathbb{R}, n\neq 4
n\ge3 ## n\ge 3, m\in\mathbb{Z}
x\ge3 ## x\ge 3, x\in\mathbb{Z}
# multiples and denominators are no nouns
5 ## 5 hundreds
5 ## 5 thousands
5 ## 5 thirds
5 ## 5 halves
5 ## 5 tenths
5 ## 5 hundredths
5 ## 5 dozens
5 ## 5 lakh
5 ## 5 crore
5 ## 5 grand
5 ## 5 per thousand
5 ## 5 per hundred
5 ## 5 fourths
5 ## 5/hundred
5 ## 5/thousand
"""
