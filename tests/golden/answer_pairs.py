"""Pairs of answers with the reason that puts them together: the same in SAME, different in DIFFERENT.

One pair a line, `gold ## answer`; a line with # in front is the reason for the pairs below it.
"""

from __future__ import annotations

from collections.abc import Iterator


def pairs(table: str) -> Iterator[tuple[str, str]]:
    """The gold and the answer of each line, less the lines that give reasons."""
    for line in table.strip().splitlines():
        if line and not line.startswith("# "):
            gold, _, answer = line.partition(" ## ")
            yield gold, answer


SAME = r"""
# expressions are compared at fixed points, for every value of their names
x^2-2x+1 ## (x-1)^2
(x+1)(x-1) ## x^2-1
\frac{1}{x}+\frac{1}{y} ## \frac{x+y}{xy}
2^{n+1}-2 ## 2(2^n-1)
\ln 6 ## \ln 2+\ln 3
\log_2 8 ## 3
\sin 2x ## 2\sin x\cos x
\cos(2x) ## 2\cos^2 x-1
e^{2x} ## (e^x)^2
\frac{x^2-1}{x-1} ## x+1
n! ## n\cdot(n-1)!
\binom{n}{2} ## \frac{n(n-1)}{2}
\binom{10}{3} ## 120
(n-2) 2^{n}+1 ## 1+n2^n-2^{n+1}
f(x)+g(x) ## g(x)+f(x)
-x+3 ## 3-x
\frac{a}{b} ## a/b
ab+bc ## b(a+c)
\sqrt{x^2} ## \lvert x\rvert
\frac{\pi}{2} ## 0.5\pi
x^{-1} ## 1/x
\arctan\frac{1}{2} ## \tan^{-1}(1/2)
\log_{10} 100 ## 2
\cot x ## \frac{\cos x}{\sin x}
\frac{x}{2}-\frac{3}{4} ## \frac{2x-3}{4}
3xy^2 ## 3 y^2 x
2(x+y) ## 2x+2y
\lfloor 3.7 \rfloor ## 3
5! ## 120
\frac{1}{\sqrt{2}} ## \frac{\sqrt{2}}{2}
x**2+1 ## x^2+1
\theta+\pi ## π+θ
# roots: exact forms, never decimals of them
\sqrt{50} ## 5\sqrt2
\sqrt[4]{16} ## 2
\sqrt[3]{-8} ## -2
2^{\frac{1}{3}} ## \sqrt[3]{2}
\frac{1}{\sqrt{3}-1} ## \frac{\sqrt{3}+1}{2}
\sqrt{3+2\sqrt2} ## 1+\sqrt2
\sqrt{12} ## 2sqrt(3)
\sqrt{12} ## √12
\sqrt{0.25} ## 0.5
3\sqrt{2} ## \sqrt{18}
\sqrt{13} ## \sqrt13
# rational numbers are exact, however written
\frac{7}{3} ## 2\frac{1}{3}
2\frac{1}{3} ## 2 1/3
-1\frac{1}{2} ## -\frac{3}{2}
\frac{1}{8} ## 0.125
0.1\overline{6} ## \frac{1}{6}
0.\overline{142857} ## 1/7
\frac{-3}{4} ## -\frac{3}{4}
\frac{3}{-4} ## -0.75
\frac{22}{7} ## 22/7
\frac{6}{8} ## \frac{3}{4}
½ ## 0.5
2½ ## 5/2
{3 \over 4} ## 3/4
\frac{1}{2} ## \frac{1}2
# separators, signs and wrappers of whole numbers
1,234,567 ## 1234567
1{,}000 ## 1000
10\,000 ## 10000
-7 ## −7
+5 ## 5
007 ## 7
42 ## 42.
42 ## \boxed{42}
42 ## \(42\)
42 ## $42$
42 ## \mathbf{42}
42 ## **42**
12 ## 12.0
3\cdot 4 ## 12
100000 ## 10^5
-3 ## \text{-3}
2 ## \text{two}
# the sign may be dropped, the scale may not change
50\% ## 0.5
50\% ## \frac12
50\% ## 50\text{ percent}
12.5\% ## 12.5
12\frac12\% ## 12.5\%
-5\% ## -5 %
# a missing currency is fine, another one is not
\$5 ## 5 dollars
\$1,000 ## 1000
$15$ ## \$15
$15 ## 15
\$2.5 ## \$2.50
50 cents ## 50\text{ cents}
\$0.50 ## 50 cents
-\$5 ## -5
€20 ## 20
20 euros ## €20
\$5 \text{ million} ## 5000000
# degrees may lose their sign
45^\circ ## 45
45° ## 45^{\circ}
45\text{ degrees} ## 45^\circ
\frac{\pi}{4} ## \pi/4
22.5^\circ ## \frac{45}{2}^\circ
\pi\text{ radians} ## \pi
100^\circ C ## 100
\angle ABC = 30^\circ ## 30
# units may be missing, never conflict; other words are no units
5\text{ cm} ## 5
5\text{ cm} ## 5cm
5\text{ m} ## 5 m
5\text{ m} ## 5m
10\text{ cm}^2 ## 10\ \text{square centimeters}
10\text{ cm}^2 ## 10cm^2
24\text{ square units} ## 24
60\text{ mph} ## 60 miles per hour
60\text{ mph} ## 60
12\text{ apples} ## 12 apples
12\text{ apples} ## 12
1 apple ## 1 apples
3\text{ hours} ## 3 hrs
9.8\text{ m/s}^2 ## 9.8\,\mathrm{m\,s^{-2}}
5\text{ feet} ## 5 ft
x=5\text{ cm} ## 5
2\pi\text{ cm} ## 2\pi
5 \text{ kg} ## 5000 \text{ g}
3 \text{ hours and } 20 \text{ minutes} ## 3\text{ hours }20\text{ minutes}
8 \text{ inches} ## 8\ \mathrm{in}
# powers of ten
3\times10^8 ## 300000000
1.5\times 10^{-3} ## 0.0015
2.5e-4 ## 0.00025
6.02 \cdot 10^{23} ## 6.02E23
10^{-3} ## 0.001
5e6 ## 5,000,000
1.6 \times 10^{-19} ## 1.6\times10^{-19}\text{ C}
# digits and base
1011_2 ## 1011_{2}
FF_{16} ## ff_{16}
1A_{16} ## 1a_{16}
(1011)_2 ## 1011_2
1011_{\text{two}} ## 1011_2
# hours and minutes, not decimals
3:45 ## 3:45
3:45\text{ PM} ## 3:45 p.m.
\text{3:45 PM} ## 3:45 pm
12:30 a.m. ## 12:30 AM
# ratios may be reduced
2:3 ## 2 : 3
3:4:5 ## 6:8:10
1:2 ## \frac12
# bracket kinds and ends count; inequalities describe intervals
[0,\infty) ## x\ge0
(-\infty,3) ## x<3
(1,2)\cup(3,4) ## (3,4)\cup(1,2)
(-\infty,-1)\cup(1,\infty) ## x<-1\text{ or }x>1
(-\infty,2)\cup(2,\infty) ## x\ne2
(-\infty,\infty) ## \mathbb{R}
[\frac12,1] ## [0.5,1]
(0,1] ## 0<x\le1
[2,5) ## \{x : 2 \le x < 5\}
\mathbb{R}\setminus\{2\} ## (-\infty,2)\cup(2,\infty)
(-2, 3) ## -2<x<3
[-1,1] ## -1\leq x\leq 1
(0, \infty) ## (0, +∞)
# order counts
(1,2,3) ## (1, 2, 3)
\left(\frac12,3\right) ## (0.5,3)
(x,y)=(1,2) ## (1,2)
(-1,0) ## ( -1 , 0 )
\langle 1,2\rangle ## \langle 1, 2 \rangle
# order does not count
\{1,2,3\} ## \{3,2,1\}
\{1,2\} ## 1,2
\emptyset ## \varnothing
\{\} ## \emptyset
\{\frac12, 1\} ## \{1, 0.5\}
\{1, 2\} ## \left\{1, 2\right\}
# all answers, in any order
3,5 ## 5,3
x=1\text{ or }x=2 ## 1,2
x=1 \text{ or } 2 ## x=2, x=1
2 \text{ and } 3 ## 3, 2
1, 2 \text{ or } 3 ## 3,2,1
x_1=2,x_2=3 ## x_2=3, x_1=2
(1,2),(3,4) ## (3,4),(1,2)
a=1,b=2 ## b=2,a=1
\pm 3 ## 3,-3
\pm 3 ## -3, 3
x=\pm 2 ## x=2,-2
x=\pm 2 ## x = 2 \text{ or } x = -2
# ± is both
2\pm\sqrt3 ## 2+\sqrt3, 2-\sqrt3
\frac{1\pm\sqrt5}{2} ## \frac{1}{2}\pm\frac{\sqrt5}{2}
1\pm i ## 1\mp i
\pm\sqrt{2},\pm 1 ## 1,-1,\sqrt2,-\sqrt2
# cell by cell
\begin{pmatrix}1\\2\end{pmatrix} ## \begin{bmatrix}1\\2\end{bmatrix}
\begin{pmatrix}1/2&0\\0&1\end{pmatrix} ## \begin{pmatrix}0.5&0\\0&1\end{pmatrix}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} ## \left(\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right)
\begin{pmatrix}2\\4\end{pmatrix} ## 2\begin{pmatrix}1\\2\end{pmatrix}
\frac{1}{2}\begin{pmatrix}1&2\\3&4\end{pmatrix} ## \begin{pmatrix}1/2&1\\3/2&2\end{pmatrix}
# a name may be dropped, an expression may not; multiples are the same equation
y=2x+1 ## y=1+2x
y=2x+1 ## 2x-y+1=0
y=2x+1 ## 2x+1
x^2+y^2=4 ## y^2+x^2=4
x+y=5 ## 2x+2y=10
y=\frac{1}{2}x ## x=2y
f(x)=x^2 ## f(x)=x\cdot x
f(x)=x^2 ## x^2
(x-1)^2+y^2=1 ## x^2+y^2-2x=0
5 ## x=5
5=x ## x=5
x = 5 ## 5 = x
P(A)=\frac12 ## \frac12
# direction and strictness count
x>3 ## 3<x
x\ge -2 ## -2\le x
2x>6 ## x>3
-3<x<3 ## 3>x>-3
x>0 ## x \in (0,\infty)
a\neq 0 ## a \ne 0
-x<-3 ## x>3
# complex numbers
1+2i ## 2i+1
\frac{1}{i} ## -i
(1+i)^2 ## 2i
i^2 ## -1
e^{i\pi} ## -1
\sqrt{-4} ## 2i
\frac{1+i}{2} ## 0.5+0.5i
2(\cos 60^\circ + i\sin 60^\circ) ## 1+i\sqrt3
\frac{5-3i}{2} ## \frac52-\frac32 i
3+4\mathrm{i} ## 3+4i
# words without case, never as products of letters
\text{yes} ## Yes
\text{No solution} ## no solution
Monday ## \text{Monday}
\text{isosceles} ## isosceles
\text{neither} ## Neither.
\text{Tom} ## Tom
\text{red} ## red
\text{no} ## No
\text{right triangle} ## Right Triangle
red, blue ## blue and red
True ## \text{true}
# choice letters
A ## \text{(A)}
A ## (A)
A ## A.
A ## \textbf{(A)}
A ## (A) 5
\textbf{(B)}\ 7 ## B
D ## \textbf{D}
B ## \text{B) }\frac12
B ## B: 12 cm
A, C ## \text{A and C}
b ## B
# ordinals
1st ## 1^{\text{st}}
3rd ## 3
21^{st} ## 21st
100th ## 100^{\text{th}}
2nd ## \text{2nd}
# Unicode signs
\frac{3}{4} ## ¾
x\le 3 ## x⩽3
\sqrt{5} ## √5
2\sqrt{5} ## 2√5
x^{10} ## x¹⁰
x_1+x_2 ## x₁+x₂
5 ## ５
3\times 4 ## 3×4
90^\circ ## 90º
\{1,2\} ## ｛1，2｝
x \in \mathbb{R} ## x ∈ ℝ
A\cup B ## A ∪ B
-\frac12 ## −½
\theta ## θ
# decimals
0.5 ## .5
3.140 ## 3.14
2.0 ## 2
-.5 ## -0.5
0.75 ## 3/4
# units in words
72 ## 72 \text{ meters}
# of every kind, once more
h+t ## t+h
-1\frac12 ## -1.5
\frac{3}{2}\sqrt{3} ## \frac{3\sqrt3}{2}
10! ## 3628800
\frac{10!}{8!} ## 90
2^{10}-1 ## 1023
\sqrt{2}+\sqrt{3} ## \sqrt{3}+\sqrt{2}
\frac{\sqrt{2}+\sqrt{6}}{4} ## \cos 15^\circ
\frac{\sqrt{2}+\sqrt{6}}{4} ## \sin 75^\circ
\tan 60^\circ ## \sqrt{3}
\frac{1}{2}\ln 2 ## \ln\sqrt2
\log_2 3 ## \frac{\ln 3}{\ln 2}
\log_{3}{9} ## 2
x^{3/2} ## x\sqrt{x}
\sqrt{a} ## a^{1/2}
a \sqrt[4]{a} ## a^{5/4}
\frac{y^{3}}{512 x^{24}} ## \frac{y^3}{(8x^8)^3}
\frac{b^{\frac{7}{4}} a^{\frac{3}{4}}}{3} ## \frac{a^{3/4} b^{7/4}}{3}
2 x^2-3x+1 ## (2x-1)(x-1)
-x^2+4 ## (2-x)(2+x)
x(x+1)(x+2) ## x^3+3x^2+2x
e^{-t/2} ## \frac{1}{e^{t/2}}
e^{-t/2} ## \exp(-t/2)
\frac{dy}{dx}=2x ## 2x
y=C e^{x} ## Ce^x
y = x^2 + C ## x^2 + C
4\pi r^2 ## 4 \pi r^{2}
\frac{4}{3}\pi r^3 ## \frac{4\pi r^3}{3}
x\in(1,5) ## 1<x<5
n\geq 1 ## n \ge 1
[0,1] ## 0\le x\le 1
\left(-\infty, \frac{1}{2}\right] ## x \leq 0.5
\{-2, 0, 2\} ## \{0, \pm 2\}
x=0, \pm 2 ## 0, 2, -2
1, 2, 3, 4 ## \{1,2,3,4\}
1,2,3 and 4 ## 1, 2, 3, 4
x=1,y=2,z=3 ## (1,2,3)
(a,b,c)=(1,2,3) ## a=1,b=2,c=3
(1,2)\text{ and }(3,4) ## (3,4),(1,2)
(0,0), (1,1) ## \{(0,0),(1,1)\}
\frac{5}{6} ## \frac{5}{6} \text{ cups}
12 \text{ in.} ## 12
12 \text{ sq. ft.} ## 12
3.5 \text{ hours} ## 3.5
\$4.50 ## \$4.50 \text{ per pound}
15 \text{ mph} ## 15\text{ mi/h}
15 ## 15 \text{ cubic inches}
15 ## 15\ \text{inches}^3
15 ## 15 \text{ inches}
100 ## 100 \text{ square feet}
120^\circ ## 120
120 ## 120^{\circ}
60 ## 60 \text{ degrees}
40\% ## 40
40\% ## \frac{2}{5}
0.4 ## 40\%
33\frac{1}{3}\% ## \frac13
33\frac{1}{3}\% ## 33\frac{1}{3}
3\times 10^{-5} ## 0.00003
3 \times 10^{5} ## 3 * 10^5
3 \times 10^{5} ## 3x10^5
1.0\times 10^{6} ## 1,000,000
123_4 ## 123_{4}
2A_{12} ## 2A_{12}
3:30 ## 3:30
3:30\text{ p.m.} ## \text{3:30 p.m.}
\text{Friday} ## friday
\text{Cannot be determined} ## cannot be determined
\text{DNE} ## \text{dne}
\text{(D)} ## D
\text{A} ## A
(E) ## \textbf{(E)}
A, B, D ## D, A, B
ABD ## ABD
A ## $\textbf{(A)}\ 36$
\textbf{(A)}\ 36 ## A
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## \begin{pmatrix}1&2\\3&4\\\end{pmatrix}
\begin{pmatrix}-1\\\frac12\end{pmatrix} ## \begin{pmatrix}-1\\[2pt] 0.5\end{pmatrix}
\begin{bmatrix} 1 \\ 0 \end{bmatrix} ## \left[ \begin{matrix} 1 \\ 0 \end{matrix} \right]
\begin{vmatrix}1&2\\3&4\end{vmatrix} ## \left|\begin{matrix}1&2\\3&4\end{matrix}\right|
x^2+y^2+4x-6y=12 ## (x+2)^2+(y-3)^2=25
\frac{x^2}{9}+\frac{y^2}{4}=1 ## 4x^2+9y^2=36
y-2=3(x-1) ## y=3x-1
2x-3y=6 ## 3y=2x-6
r=2\cos\theta ## r = 2 \cos \theta
\sqrt{-9} ## 3i
-i ## 0-i
1-i ## 1 - 1i
i\sqrt{3} ## \sqrt{3}i
\frac{-1+ i\sqrt{7}}{2} ## -\frac12+\frac{\sqrt7}{2}i
\cos\frac{\pi}{3}+i\sin\frac{\pi}{3} ## e^{i\pi/3}
\pm\frac{\sqrt{2}}{2} ## \frac{\sqrt2}{2},-\frac{\sqrt2}{2}
\frac{3\pm\sqrt{5}}{2} ## \frac{3+\sqrt{5}}{2} \text{ and } \frac{3-\sqrt{5}}{2}
\frac{3\pm\sqrt{5}}{2} ## x=\frac{3\pm\sqrt5}{2}
1 \pm 2i ## 1+2i, 1-2i
22^\text{nd} ## 22nd
4^{th} ## 4
30\text{th} ## 30th
\frac{1}{3} ## ⅓
45 ## ４５
3√2 ## 3\sqrt{2}
x₁=2 ## x_1=2
a²+b² ## a^2+b^2
≥ ## \ge
−5 ## -5
“5” ## “5”
3–4 ## 3-4
2π ## 2\pi
5 ×10³ ## 5000
\tfrac{1}{2} ## \frac 1 2
\frac 1 2 ## 0.5
\frac1{10} ## 0.1
1/2 ## .5
5/10 ## 1/2
-\dfrac{7}{4} ## \dfrac{-7}{4}
3\dfrac{1}{4} ## \frac{13}{4}
3 1/4 ## 3.25
0.\overline{36} ## \frac{4}{11}
2.\overline{3} ## 7/3
0.1\overline{2} ## \frac{11}{90}
1.\overline{27} ## \frac{14}{11}
\boxed{7} ## 7
{7} ## 7
(7) ## 7
\text{7} ## 7
7\,\text{units} ## 7
n=7 ## 7
7 ## n=7.
f(x) = 3x+2 ## 3x+2
a_n = 2n-1 ## 2n-1
\frac{2}{\sqrt{3}} ## \frac{2\sqrt{3}}{3}
18\sqrt{3}\text{ cm}^2 ## 18\sqrt3
\frac{9\pi}{2} ## 4.5\pi
60\pi \text{ cubic cm} ## 60\pi
\text{Yes} ## \text{yes.}
\infty ## +\infty
-\infty ## −∞
\text{no real solutions} ## No real solutions
\frac{x+1}{x-1}, x\neq 1 ## \frac{x+1}{x-1}, x \ne 1
2^{2^3} ## 256
\left\lfloor \frac{7}{2} \right\rfloor ## 3
\gcd(12,18) ## 6
\max(2,3) ## 3
\sum_{k=1}^n k^2 ## \sum_{k=1}^{n} k^2
\int_0^1 f(x)\,dx ## \int_{0}^{1} f(x) dx
\overline{AB} ## \overline{AB}
\triangle ABC ## \triangle ABC
\vec{a}+\vec{b} ## \vec{b}+\vec{a}
2\mathbf{i}+3\mathbf{j} ## 3\mathbf{j}+2\mathbf{i}
P(X=2)=\frac14 ## 0.25
\text{Area}=12 ## 12
12 ## \text{Area}=12
12 ## Area = 12 cm^2
h(x)=x^2-1 ## (x-1)(x+1)
x = 2k\pi, k\in\mathbb{Z} ## x=2k\pi, k\in\mathbb{Z}
x = 2k\pi ## x=2 k \pi
3.0 x 10^8 m/s ## 3\times10^8
9.8 m/s^2 ## 9.8\text{ m/s}^2
90^o ## 90^\circ
\text{Rs. }500 ## 500
USD 36 ## \$36
5 cm long ## 5\text{ cm}
10 years old ## 10
a/b ## \frac{a}{b}
m/s ## \frac{m}{s}
5 km/h ## 5
\text{The answer is } 5 ## 5
The answer is 5 ## 5
4.2×10⁻³ ## 0.0042
∛8 ## 2
√(2) ## \sqrt2
5⁄8 ## \frac58
Ⓑ ## B
2³ ## 8
π/2 ## \frac{\pi}{2}
3 ≤ x < 5 ## [3,5)
x ∈ [1, 2] ## [1,2]
(−∞, 3] ## x \le 3
{1, 2} ## \{1,2\}
½π ## \frac{\pi}{2}
x² + y² = 1 ## x^2+y^2=1
60° ## 60
¼ ## 0.25
|x| ## \left|x\right|
1′ ## 1'
a·b ## ab
“yes” ## “yes”
△ABC ## \triangle ABC
x → ∞ ## x \to \infty
x=\frac{3}{4}=0.75 ## 3/4
0.75 ## \frac34 = 0.75
\approx 3.14 ## 3.14
12 \text{ hours} ## 12 \text{ hrs}
1.5\text{ million} ## 1500000
1,500,000 ## 1.5 \times 10^6
\frac{1}{2}, \frac{1}{3} ## 1/3, 1/2
(1, 2), (3, 4) ## (1,2) and (3,4)
x = 1, x = 2 ## \{1, 2\}
\{(1,2),(2,1)\} ## (1,2),(2,1)
x<-2 \text{ or } x>2 ## (-\infty,-2)\cup(2,\infty)
x<-2, x>2 ## (-\infty,-2)\cup(2,\infty)
-2<x<2 \text{ and } x\neq 0 ## (-2,0)\cup(0,2)
x\geq 0 \text{ and } x \leq 4 ## [0,4]
[0,2]\cap[1,3] ## [1,2]
y \le 4 ## (-\infty,4]
\left(\frac{1}{2},\infty\right) ## x>\frac12
2+\sqrt{3} ## \frac{1}{2-\sqrt{3}}
\frac{\sqrt[3]{4}}{2} ## \frac{1}{\sqrt[3]{2}}
\sqrt[3]{54} ## 3\sqrt[3]{2}
32^{1/5} ## 2
\ln(e^2) ## 2
e^{\ln 3} ## 3
10^{\log 5} ## 5
\log_{4}8 ## \frac{3}{2}
\sin^{-1}(1) ## \frac{\pi}{2}
\cos^2 x - \sin^2 x ## \cos 2x
\sec^2 x - 1 ## \tan^2 x
(a-b)^3 ## a^3-3a^2b+3ab^2-b^3
\frac{a^2-b^2}{a-b} ## a+b
n(n+1)(2n+1)/6 ## \frac{2n^3+3n^2+n}{6}
x^{\frac{2}{3}} ## \sqrt[3]{x^2}
(x^2)^{1/3} ## x^{2/3}
\frac{\ln 8}{\ln 2} ## 3
\det A ## \det A
A^T ## A^T
A^{-1} ## A^{-1}
\mathbf{v} ## \mathbf{v}
\frac{d}{dx} ## \frac{d}{dx}
\infty ## \infty.
Q(x)=x+1 ## x+1
T_n=3n-2 ## 3n-2
S = 4\pi ## 4\pi
V=\frac{4}{3}\pi r^3 ## \frac43\pi r^3
\angle A = 60^\circ ## 60^\circ
AB = 5 ## 5
AB=5\text{ cm} ## 5
x-y=3 ## y=x-3
y = -2x ## 2x+y=0
x=3 ## x-3=0
3x - 4y + 5 = 0 ## 4y=3x+5
y^2=4x ## x=\frac{y^2}{4}
\begin{pmatrix}1\\2\\3\end{pmatrix} ## \begin{bmatrix}1\\2\\3\end{bmatrix}
\begin{pmatrix} \sqrt{2} & 0 \\ 0 & 1 \end{pmatrix} ## \begin{pmatrix} 2^{1/2} & 0 \\ 0 & 1 \end{pmatrix}
-\begin{pmatrix}1\\2\end{pmatrix} ## \begin{pmatrix}-1\\-2\end{pmatrix}
\text{(A) and (C)} ## A, C
A and C ## A, C
\text{Option B} ## B
\text{choice } C ## C
(c) ## C
1:30 PM ## 1:30 p.m.
1:30\,\text{PM} ## 1{:}30 \text{ pm}
1{:}30 ## 1:30
4\text{ hr }30\text{ min} ## 270\text{ minutes}
30^{th} ## 30
1st place ## 1st
-\$5.00 ## -5
\$-5 ## -\$5
5¢ ## 5 cents
£3.50 ## 3.5
3\frac{1}{2}\text{ cups} ## 3.5
25 \% ## \frac{25}{100}
\frac{25}{100} ## 25\%
"""

DIFFERENT = r"""
# expressions are compared at fixed points, for every value of their names
x ## y
2x ## 2y
ab ## a+b
x^2 ## 2x
\sqrt{x^2} ## x
\frac{x}{y} ## \frac{y}{x}
x^{2}+1 ## x^{2}-1
\sin x ## \cos x
\sin^2 x ## \sin x^2
\log x ## \ln x
2^x ## x^2
f(x) ## g(x)
f(2) ## f(3)
f(x+1) ## f(x)+1
x_1 ## x_2
n! ## n
-x ## x
\frac{1}{x+y} ## \frac{1}{x}+\frac{1}{y}
(x+y)^2 ## x^2+y^2
\pi ## 22/7
3x+2 ## 3x+2y
xyz ## xy
\binom{10}{3} ## \binom{10}{4}
x ## X
\ln 2 ## 0.693
10^{50} ## \sqrt{10^{100}+1}
\sum_{k=1}^{n} k ## \sum_{k=1}^{n} k^2
\sum_{k=1}^{10} k ## \sum_{k=1}^{11} k
# roots: exact forms, never decimals of them
\sqrt{3} ## \sqrt{2}
2\sqrt{3} ## 3\sqrt{2}
\sqrt[3]{4} ## \sqrt[4]{3}
\sqrt{2} ## -\sqrt{2}
# rational numbers are exact, however written
\frac{1}{3} ## 0.33
\frac{2}{3} ## 0.6667
\frac{1}{2} ## \frac{2}{1}
1\frac{1}{2} ## \frac{11}{2}
\frac12 ## 12
3/4 ## 3
0.\overline{3} ## 0.333
2\frac{1}{3} ## 2\cdot\frac{1}{3}
# separators, signs and wrappers of whole numbers
12 ## 1,2
12 ## 1 2
123 ## 1 2 3
1000 ## 1
10 ## 100
5 ## -5
1234 ## 1,23,4
5 ## 5.1
5 ## \frac{5}{2}
5 ## 5!
5 ## 5^2
10^{20} ## 10^{20}+1
123456789012345678901 ## 123456789012345678902
# the sign may be dropped, the scale may not change
50\% ## 5\%
0.5 ## 50
50 ## 0.5
50\% ## 0.05
5 ## 0.05\%
50\% ## 500
# a missing currency is fine, another one is not
\$5 ## \$6
\$5 ## €5
5 dollars ## 5 cents
\$5 ## £5
\$1.50 ## \$15
# degrees may lose their sign
45^\circ ## 54^\circ
45^\circ ## 45\text{ radians}
30^\circ ## 60^\circ
30^\circ ## 30\%
# units may be missing, never conflict; other words are no units
5\text{ cm} ## 5\text{ m}
5\text{ cm} ## 5\text{ cm}^2
10\text{ kg} ## 10\text{ g}
5\text{ hours} ## 5\text{ minutes}
5\text{ apples} ## 5\text{ oranges}
5 \text{ cm} ## 6\text{ cm}
5 ## 5 is wrong
5 ## 5 or 6
5 ## 5 or more
5 ## 5 plus 2
5 ## not 5
5 ## 5 times 10
5 ## 5 squared
5 ## 5 million
5 ## 5 thousand
5 ## 5 dozen
5 ## 5x
5 ## 5m
5 ## 5 x
5 ## about 5
5 ## at least 5
5 ## less than 5
5 ## 5 5
5 ## 5 but maybe 6
5 ## 5 \text{ or } 5x
5 \text{ feet} ## 5\text{ inches}
9.8\text{ m/s} ## 9.8\text{ m/s}^2
# powers of ten
3\times10^8 ## 3\times10^9
1.5e3 ## 1.5e4
10^{-3} ## 10^{3}
2e5 ## 2e
6.02\times10^{23} ## 6.02
# digits and base
1011_2 ## 1011_3
1011_2 ## 1101_2
10_2 ## 2
11_2 ## 3
FF_{16} ## FE_{16}
# hours and minutes, not decimals
3:45 ## 3:54
3:45 AM ## 3:45 PM
3:45\text{ p.m.} ## 3:45\text{ a.m.}
3:45 ## 3.75
3:45 ## 345
12:00 ## 24:00
2:30 ## 5:00
# ratios may be reduced
2:3 ## 3:2
2:3 ## 2
1:2:3 ## 1:2
1:2:3 ## 3:2:1
2:3 ## 23
# bracket kinds and ends count; inequalities describe intervals
[0,1] ## (0,1)
[0,1] ## [0,2]
(0,1) ## (1,0)
(-\infty,3] ## (-\infty,3)
(1,2)\cup(3,4) ## (1,2)
(1,2)\cup(3,4) ## (1,4)
(1,2) ## 1,2,3
[1,2] ## \{1,2\}
(0,\infty) ## [0,\infty)
(0,\infty) ## (-\infty,0)
(1,2)\cup(2,3) ## (1,3)
\mathbb{R} ## \mathbb{Z}
# order counts
(1,2) ## (2,1)
(1,2) ## (1,2,3)
(1,2,3) ## \{1,2,3\}
(1,2) ## (1,-2)
(1,2) ## 12
(1,2) ## 1
(1,2) ## [1,2]
(1,2) ## 3
(0,0) ## 0
(1,2) ## 2,1
(5) ## (5,5)
# order does not count
\{1,2\} ## \{1,2,3\}
\{1,2\} ## \{1\}
\{1,2\} ## \{1,3\}
\{1\} ## \{\}
\emptyset ## 0
\{1,2\} ## (1,2)
\{1,2\} ## \{12\}
\{0\} ## \{\emptyset\}
# all answers, in any order
3,5 ## 3
3,5 ## 3,5,7
3 ## 3,5
3 \text{ and } 5 ## 8
x=3,y=5 ## x=5,y=3
x=1,x=2 ## x=1
(1,2),(3,4) ## (1,2)
(1,2),(3,4) ## (1,3),(2,4)
(1,2),(3,4) ## 1,2,3,4
1,2 ## 1+2
2,3 ## 3,3
2 ## 2,2x
1,2,3 ## 6
5 ## 5, -5
1 ## 1, 1, 2
# ± is both
\pm 3 ## 3
3 ## \pm 3
\pm 3 ## \pm 4
2\pm\sqrt3 ## 2+\sqrt3
2\pm\sqrt3 ## \pm2+\sqrt3
1\pm\sqrt2 ## 1\pm\sqrt3
\pm1,\pm2 ## 1,2
# cell by cell
\begin{pmatrix}1\\2\end{pmatrix} ## \begin{pmatrix}2\\1\end{pmatrix}
\begin{pmatrix}1&2\end{pmatrix} ## \begin{pmatrix}1\\2\end{pmatrix}
\begin{pmatrix}1&0\\0&1\end{pmatrix} ## 1
\begin{pmatrix}1&0\\0&1\end{pmatrix} ## \begin{pmatrix}1&0&0\\0&1&0\\0&0&1\end{pmatrix}
\begin{pmatrix}1\\2\end{pmatrix} ## 2\begin{pmatrix}1\\2\end{pmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## \begin{pmatrix}1&3\\2&4\end{pmatrix}
\begin{pmatrix}1\\2\end{pmatrix} ## (1,2,3)
# a name may be dropped, an expression may not; multiples are the same equation
y=2x+1 ## y=2x-1
y=2x+1 ## x=2y+1
y=2x+1 ## z=2x+1
x=5 ## y=5
x=5 ## x=6
x=5 ## x>5
x=5 ## -x=5
x+y=5 ## 5
x^2=4 ## 4
x^2=4 ## x=2
x+y=0 ## x-y=0
2x=6 ## 6
0=0 ## 1=1
x=x ## y=y
y=0 ## x=0
3 ## 2+2=5
5 ## 5=6
x^2+y^2=4 ## x^2+y^2=2
5 ## x+5=5
a=1,b=2 ## a=2,b=1
5 ## 2x=5
xy=1 ## x+y=1
f(x)=x ## g(x)=x
# direction and strictness count
x>3 ## x\ge3
x>3 ## x<3
x>3 ## y>3
x>3 ## x>4
x>3 ## (3,4)
x>3 ## [3,\infty)
1<x<2 ## 1<x<3
1<x<2 ## 1\le x\le2
x<1\text{ or }x>3 ## 1<x<3
x\ne 3 ## x=3
x\ne 3 ## 3
2x>6 ## x<3
x>1\text{ and }x<3 ## x>1\text{ or }x<3
# complex numbers
1+2i ## 1-2i
1+2i ## 3
i ## -i
2i ## 2
1+2i ## (1,2)
\sqrt{-4} ## 2
\sqrt{-4} ## -2i
3+4i ## 5
i ## j
# words without case, never as products of letters
yes ## no
\text{east} ## \text{west}
\text{yes} ## 1
no ## on
\text{evil} ## \text{vile}
cat ## act
\text{cat} ## tac
abc ## cba
Tom ## Tim
\text{Alice} ## \text{Alice and Bob}
\text{Alice and Bob} ## Alice
even ## not even
true ## not true
odd ## even
\text{right triangle} ## triangle
\text{none} ## 0
\text{No} ## \text{No solution}
pi ## ip
\text{red} ## \text{blue}
seven ## 8
June 20 ## 20
\text{June 20} ## \text{July 20}
# choice letters
A ## B
A ## (B)
A ## AB
A ## A or B
A ## (A) or (B)
A ## A, B, C, D
A ## (A)(B)
A ## 1
C ## \text{(D)}
A ## B) A
A ## not A
B ## A) B
A ## A=5
A ## 2A
# ordinals
1st ## 2nd
3rd ## 13th
21st ## 2
# Unicode signs
½ ## ¼
x² ## x³
x₁ ## x₂
√5 ## 5
5² ## 52
π ## p
∞ ## -∞
# decimals
0.5 ## 0.50001
3.14 ## 3.141
0.1 ## 0.01
2.50 ## 2.05
# junk is never right
5 ## \text{5 or 6}
5 ## ?
5 ## 5?6
5 ## \boxed{}
5 ## []
5 ## ()5()6
5 ## "5" or 6
0 ## \emptyset
0 ## -
0 ## \frac{0}{0}
1 ## \frac{0}{0}
\frac{1}{0} ## \frac{2}{0}
\infty ## \frac{1}{0}
5 ## {5,}6
5 ## \text{answer: 6}
5 ## x
x ## ?
\frac12 ## \frac{}{}
5 ## 5 = 6
5 ## {5}{6}
5 ## 5\\6
5 ## 5&6
5 ## 5;6
5 ## 5|6
\text{yes} ## yesno
5 ## 4 < 5
5 ## 5...
1 ## 0.999...
5 ## 5\ldots
1 ## \sin
10 ## 1 0
5 ## \phantom{5}
5 ## \text{}
5 ## 5 \text{ not}
5 ## 5 = x = 6
5 ## x = 5 = 6
e^{-1000} ## 0
0 ## e^{-1000}
\sin(10^{-30}) ## 10^{-30}
1 ## \cos(10^{-25})
# of every kind, once more
5 m/s ## 5 s/m
5 ## 5 touch PWN
5 ## 5 import os
5 ## 5 foo bar baz
5 ## 5 print print
5\text{ m/s} ## 5\text{ km/h}
The answer is 5 ## 6
5 cm ## 5 m long
h+t ## a+d
2·a ## 2·d
-1\frac12 ## -0.5
2^{k-1} ## 2^k-1
\sqrt{x+1} ## \sqrt{x}+1
x^{2y} ## x^2y
\frac{1}{2x} ## \frac{1}{2}x
\frac{a+b}{c} ## a+\frac{b}{c}
\frac{10!}{8!} ## 10
\log_2 3 ## \log_3 2
\tan 60^\circ ## \tan 60
\sin 30^\circ ## \sin 30
x^{1/2} ## x^{1/3}
y=x^2+C ## y=x^2
C e^{x} ## e^{x}
|x-3|<2 ## |x-3|<3
x\neq 2 ## x\neq -2
n\geq 1 ## n>0
\{0,\pm2\} ## \{0,2\}
(a,b,c)=(1,2,3) ## (3,2,1)
x=1,y=2 ## x=2,y=1
(0,0), (1,1) ## (0,1),(1,0)
12 \text{ in.} ## 12\text{ ft}
60\text{ mph} ## 60\text{ m/s}
\$4.50 ## 4.50 \text{ euros}
0.4\% ## 40\%
3\times 10^{-5} ## 3\times 10^{5}
123_4 ## 123_5
123_4 ## 321_4
3:30 ## 3:03
3:30\text{ p.m.} ## 3:30\text{ a.m.}
3:30\text{ p.m.} ## 15:30\text{ a.m.}
\text{Friday} ## Monday
(E) ## (D)
A, B, D ## A, B
A ## A, B, D
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## \begin{pmatrix}1&2\\3&4\\5&6\end{pmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## -2
2x-3y=6 ## 2x+3y=6
y=3x-1 ## y=-3x-1
\frac{x^2}{9}+\frac{y^2}{4}=1 ## \frac{x^2}{4}+\frac{y^2}{9}=1
e^{i\pi/3} ## e^{-i\pi/3}
\frac{3\pm\sqrt{5}}{2} ## \frac{3+\sqrt{5}}{2}
\frac{3\pm\sqrt{5}}{2} ## \frac{5\pm\sqrt{3}}{2}
22nd ## 23rd
0.\overline{36} ## 0.36
0.\overline{36} ## 0.3\overline{6}
2.\overline{3} ## 2.3
1/2 ## 1/3
\frac{1}{2} ## -\frac{1}{2}
7 ## n=8
n=7 ## m=7
7 ## 7n
7 ## n+7
7 ## 7 \text{ or } 8
7 ## 7, 8
7 ## (7,7)
7 ## \{7, 8\}
7 ## [7]8
7 ## 77
7 ## 7\cdot 7
7 ## 7^7
7 ## 7!
7 ## 07.1
7 ## \sqrt{7}
7 ## |7|i
7 ## 7+0.0000001
7 ## 6.9999999999
7 ## 7 - 1
7 ## \frac{7}{0}
7 ## \frac{0}{7}
7 ## 7:1:1
7 ## 7 < 8
7 ## x<7
7 ## x \ge 7
7 ## 7 \pm 1
7 ## 7_
7 ## _7
7 ## 7__8
7 ## seven or eight
7 ## \text{seventy}
7 ## 7 apples and 8 oranges
7 ## 7 is the answer or not
7 ## \text{It is 7 or 8}
7 ## the answer is 8 not 7
7 ## ans
7 ## \boxed{8}
7 ## {7}{7}
7 ## 7''
7 ## 7'
7 ## True
7 ## null
0 ## 0x1
0 ## false
0 ## 10^{-400}
1 ## 1+10^{-60}
1 ## 1+10^{-200}
\pi ## \pi+10^{-60}
\pi ## \pi + 10^{-45}
\sqrt2 ## \sqrt{2+10^{-70}}
e ## (1+10^{-9})^{10^9}
0 ## \sin(10^{20}\pi+10^{-30})
x ## x+10^{-40}
x ## \sqrt{x^2+10^{-50}}
\text{evil} ## live
stop ## post
god ## dog
AB ## BC
\overline{AB} ## \overline{CD}
\angle A ## \angle B
\vec{a} ## \vec{b}
a_1 ## a_2
a_n ## a_{n+1}
\text{m} ## \text{s}
x' ## x
f'(x) ## f(x)
f^{-1}(x) ## f(x)
\Gamma ## \gamma
\int_0^1 x dx ## \int_0^2 x dx
P(A) ## P(B)
P(A\cup B) ## P(A\cap B)
A\cup B ## A\cap B
A\cup B ## A
\emptyset ## \{\emptyset\}
(1,2] ## [1,2)
(1,2]\cup[3,4) ## (1,2)\cup(3,4)
\{1\}\cup(2,3) ## (2,3)
x=1 ## 1=1
x+1 ## y+1
x<5 ## x<-5
x<y ## y<x
a<b<c ## c<b<a
x=2k\pi ## x=k\pi
3+4i ## 4+3i
5\text{ cm} ## 5\text{ kg}
5\text{ cm}^2 ## 5\text{ cm}^3
5\text{ days} ## 5\text{ years}
\$5 ## 5\%
5^\circ ## 5\%
5\text{ red} ## 5\text{ blue}
12 \text{ boys} ## 12 \text{ girls}
1,2,\ldots,n ## 1,2,\ldots,m
1,2,\ldots ## 1,2
"""
