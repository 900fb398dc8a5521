"""Pairs of which the second could be written to be paid without being right.

One pair a line, `gold ## answer`; a line with # in front is the reason for the pairs below it.
"""

DIFFERENT = r"""
# what says nothing, hedges or only repeats itself is no answer
5 ## 5=5
5 ## 5 = x = 6
5 ## 5,,
5 ## \{5
5 ## \pm
5 ## a
5 ## \boxed{}
5 ## \\
5 ## ^
5 ## {}{}
5 ## \left(\right)
5 ## $
5 ## ""
5 ## ``
5 ## **
5 ## "
5 ## x = x
5 ## 6 = 6
5 ## 5 \ne 5
5 ## 5 < 6
5 ## 5 \le 5
5 ## [0, 10]
5 ## x \ge 5
5 ## \mathbb{N}
5 ## 5 \lor 6
5 ## 5 \land 6
5 ## 5/6
5 ## 5;6
5 ## 5:6
5 ## 5|6
5 ## 5&6
5 ## 5\\6
5 ## 5 \quad 6
5 ## \approx 6
5 ## 5 \to 6
5 ## 5 vs 6
5 ## 5 maybe 6
5 ## 5 (or 6)
5 ## 5 [6]
5 ## 5^6
5 ## 5\text{, or } 6
5 ## 5\text{ if not } 6
5 ## five or six
5 ## five six
5 ## fifty
5 ## \text{the answer}
5 ## \text{see above}
5 ## \text{5 is not the answer}
\frac{1}{2} ## \frac{1}{}
(1,2) ## (,)
(1,2) ## (x,y)
\{1,2\} ## \{x\}
\emptyset ## \{
\mathbb{R} ## x
\text{yes} ## \text{maybe}
x=5 ## x=x
x=5 ## x=5=6
x=5 ## x
x>5 ## x
x>5 ## x>x
x<y ## x<x
y=2x ## y=y
y=2x ## 0=0
x^2+y^2=1 ## 0=0
x^2+y^2=1 ## 1=1
x+1=0 ## 0=0
B ## A,B
B ## (A)(B)
B ## A/B
B ## B or A
B ## B?A
B ## All of the above
B ## b = A
1 ## 1\text{ or }2\text{ or }3
10 ## 1-100
10 ## \le 10
10 ## <= 10
10 ## about 10 or 11
# near misses
0.4\% ## 0.4
10\% ## width=height=10
5 ## A(5)
5 ## f(5)
5 ## \sin(5)
x ## |x|
x ## -x
x ## x'
x^2 ## x^2+C
\frac{x^2}{2}+C ## \frac{x^2}{2}
a+b ## a-b
a_n ## a_{n+1}
\binom{5}{2} ## \binom{5}{1}
5! ## 5
2^3 ## 3^2
\log 100 ## \ln 100
3.0 ## 3.1
x=5 ## 5=y
3 \cdot 10^8 ## 3 \cdot 10^7
\tan 89^\circ ## \tan 89
\cos 0 ## 0
(1,2,3) ## (1,3,2)
P(X=1) ## P(X=2)
P(A|B) ## P(A)
P(A|B) ## P(A \cap B)
AB ## AC
AB=5 ## AC=5
\angle ABC ## \angle ACB
\triangle ABC ## \triangle DEF
2n ## n^2
0 ## \epsilon
\frac{0}{5} ## \frac{5}{0}
1 ## 0^0
1 ## \infty/\infty
1 ## x/x \cdot 2
4 ## 2^2^1 5
2 ## \{2\} \cup \{3\}
6 ## 6\text{ not }7
6 ## 6 \text{ (not 7)}
12 ## 12\text{ or so, maybe }13
# an equation in the middle counts, and 10,20 is no 10,2
a=1 \quad b=2 ## a=3 \quad b=2
$a=1$ \quad $b=2$ ## $a=3$ \quad $b=2$
a=1 \quad b=2 ## b=1 \quad a=2
x=2 for y=3 ## x=1 for y=3
f(y)=\frac12 for y=1 ## f(y)=\frac13 for y=1
10,20 ## 10,2
-3,0 ## -3
-5,0 ## -5.0
"""
