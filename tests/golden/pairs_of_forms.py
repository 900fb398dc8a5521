"""Pairs of answers in different notations of one kind: constants, counting, vectors, words, bases, cases, families.

One pair a line, `gold ## answer`; a line with # in front is the reason for the pairs below it. ONE_WAY holds for a gold
and an answer in this order only.
"""

SAME = r"""
# an arbitrary constant may have another name, and a constant more or less is another answer
x^2+C ## x^2+c
\frac{x^3}{3}+C ## \frac{x^3}{3}+C_1
\ln|x|+C ## \ln|x|+c
\ln|x|+C ## \ln|2x|+C
\sin^2 x+C ## -\cos^2 x+C
\frac{(x+1)^2}{2}+C ## \frac{x^2}{2}+x+C
-\cos x + C ## -\cos(x)+c
x^3+c ## x^3+C
C_1e^x+C_2e^{-x} ## c_1e^x+c_2e^{-x}
C_1e^x+C_2e^{-x} ## Ae^x+Be^{-x}
C_1e^x+C_2e^{-x} ## C_2e^x+C_1e^{-x}
y=C_1\cos x+C_2\sin x ## y = c_1 \sin x + c_2 \cos x
A\cos 2t+B\sin 2t ## c_1\cos 2t+c_2\sin 2t
\frac{1}{2}e^{2x}+C ## \frac{e^{2x}}{2} + c
\ln(x^2+1)+C ## \ln(1+x^2)+C_0
\sin x - x\cos x + C ## -x\cos x+\sin x+c
y=C_1e^{2x}+C_2e^{3x} ## y=c_1e^{3x}+c_2e^{2x}
y=e^{-x}(C_1\cos x+C_2\sin x) ## e^{-x}(A\cos x+B\sin x)
x^2+y^2=C ## y^2+x^2=c
y=x^2+C ## y=x^2+C \text{ where } C \text{ is a constant}
\frac{x^2}{2}+C ## \frac{x^2}{2} + C, where C is an arbitrary constant
# vectors: tuples, columns, angle brackets, unit vectors, and arithmetic on them
\langle 1,2\rangle ## \mathbf{i}+2\mathbf{j}
\mathbf{i}+2\mathbf{j} ## \hat{i}+2\hat{j}
\mathbf{i}+2\mathbf{j}-\mathbf{k} ## \langle 1,2,-1\rangle
\mathbf i+2\mathbf j ## \vec{i}+2\vec{j}
3\hat{\imath}-4\hat{\jmath} ## \langle 3,-4\rangle
3\mathbf{i}-4\mathbf{k} ## (3,0,-4)
\begin{pmatrix}1\\2\end{pmatrix} ## (1,2)^T
\begin{pmatrix}1\\2\end{pmatrix} ## [1,2]^T
\begin{pmatrix}1\\2\end{pmatrix} ## \begin{pmatrix}1 & 2\end{pmatrix}^{\top}
(2,4) ## 2(1,2)
\left(\frac12,1\right) ## \frac12(1,2)
\langle 1,2\rangle ## \left<1,2\right>
\langle 1,2\rangle ## <1,2>
(1,2,3)+t(4,5,6) ## (1+4t,2+5t,3+6t)
\begin{pmatrix}1\\2\end{pmatrix} ## \left\langle 1,2\right\rangle
\frac{1}{3}(2,-1,2) ## \left(\frac23,-\frac13,\frac23\right)
\frac{\langle 3,4\rangle}{5} ## \left\langle \frac35,\frac45\right\rangle
\langle 2,-3,5\rangle ## 2\mathbf{i}-3\mathbf{j}+5\mathbf{k}
2\hat{i}-3\hat{j}+5\hat{k} ## (2,-3,5)
2\vec{i}-3\vec{j} ## 2\mathbf i-3\mathbf j
\begin{pmatrix}2\\-3\\5\end{pmatrix} ## 2\mathbf{i}-3\mathbf{j}+5\mathbf{k}
\begin{pmatrix}2\\-3\end{pmatrix} ## (2,-3)
(4,6) ## 2\langle 2,3\rangle
\left(\frac{1}{\sqrt5},\frac{2}{\sqrt5}\right) ## \frac{1}{\sqrt5}(1,2)
\left(\frac{1}{\sqrt5},\frac{2}{\sqrt5}\right) ## \frac{(1,2)}{\sqrt5}
5\mathbf{j} ## (0,5)
4\mathbf{i} ## \langle 4,0\rangle
# combinations and permutations in the notations of many countries
\binom{20}{10} ## C(20,10)
184756 ## C(20,10)
184756 ## 20C10
184756 ## {}_{20}C_{10}
184756 ## _{20}C_{10}
184756 ## C_{20}^{10}
184756 ## ^{20}C_{10}
184756 ## {}^{20}C_{10}
\binom{20}{10} ## 20C10
604800 ## P(10,7)
604800 ## 10P7
604800 ## _{10}P_7
604800 ## {}_{10}P_{7}
604800 ## {}^{10}P_7
604800 ## P_{10}^{7}
604800 ## A_{10}^{7}
604800 ## 10 P 7
\binom{n}{2} ## C(n,2)
\binom{n}{k} ## C_n^k
\binom{n}{k} ## {}_nC_k
1-\frac{\binom{4}{2}}{\binom{10}{2}} ## 1-\frac{C(4,2)}{C(10,2)}
\binom{10}{3}\cdot\binom{5}{2} ## C(10,3)\cdot C(5,2)
\binom{10}{3}\cdot\binom{5}{2} ## C(10,3) \times C(5,2)
\frac{\binom{13}{2}}{\binom{52}{5}} ## \frac{C(13,2)}{C(52,5)}
C(5,2) ## 5 choose 2
\binom{10}{3} ## 10C3
\binom{10}{3} ## ^{10}C_3
\binom{10}{3} ## C^{3}_{10}
\binom{10}{3} ## \mathrm{C}_{10}^{3}
\binom{10}{3} ## C(10, 3)
\binom{10}{3} ## C(10,7)
\binom{10}{3} ## 10 choose 3
120 ## _{10}C_{3}
120 ## {}^{10}\mathrm{C}_3
720 ## P(10,3)
720 ## ^{10}P_3
720 ## 10P3
720 ## A_{10}^3
\frac{\binom{4}{2}\binom{48}{3}}{\binom{52}{5}} ## \frac{C(4,2)C(48,3)}{C(52,5)}
\frac{\binom{4}{2}\binom{48}{3}}{\binom{52}{5}} ## \frac{C(4,2)\cdot C(48,3)}{C(52,5)}
\binom{n+1}{2} ## C(n+1,2)
\binom{n+1}{2} ## C_{n+1}^{2}
# words of one meaning
\text{blue} ## The color is blue
\text{odd} ## odd function
\text{odd} ## The function is odd
\text{even} ## \text{even function}
\text{neither} ## neither even nor odd
odd function ## odd
\text{isosceles} ## isosceles triangle
\text{converges} ## convergent
\text{diverges} ## The series diverges
\text{diverges} ## divergent
\text{parallel} ## they are parallel
\text{prime} ## a prime number
\text{circle} ## It is a circle
\text{Friday} ## It is Friday
\text{hyperbola} ## The graph is a hyperbola
\text{obtuse} ## obtuse triangle
\text{even function} ## even
\text{neither} ## neither odd nor even
\text{neither} ## The function is neither even nor odd
\text{irrational} ## irrational number
\text{composite} ## a composite number
\text{Yes} ## Yes, it is
\text{No} ## No, it is not
\text{No} ## No, it does not
\text{True} ## The statement is true
\text{False} ## The statement is false
\text{convergent} ## converges
\text{convergent} ## The series converges
\text{divergent} ## it diverges
\text{absolutely convergent} ## converges absolutely
\text{increasing} ## increasing function
\text{tie} ## a tie
# no solution, infinitely many, does not exist, and sets of numbers in words
\text{no solution} ## \emptyset
\emptyset ## no solution
\text{no solutions} ## There are no solutions
\emptyset ## none
\text{none} ## no solution
\text{no real solutions} ## \text{no solution}
\text{No real roots} ## no real solutions
\text{no solution} ## x \in \emptyset
\text{no solution} ## ∅
\text{infinitely many} ## infinitely many solutions
\text{infinitely many solutions} ## infinite solutions
\text{infinitely many} ## There are infinitely many solutions.
\text{infinitely many} ## \infty
\text{infinite} ## infinitely many
\text{DNE} ## The limit does not exist
\text{undefined} ## not defined
\text{does not exist} ## undefined
\text{does not exist} ## doesn't exist
\emptyset ## \text{No solution}
\text{No solution} ## no solutions exist
\text{no solution} ## There is no solution.
\text{no solution} ## no real solution
\text{no solution} ## No real solutions exist
\text{none} ## \emptyset
\text{infinitely many solutions} ## infinitely many
\text{infinitely many solutions} ## an infinite number of solutions
-\infty ## negative infinity
-\infty ## minus infinity
\text{DNE} ## limit does not exist
\text{does not exist} ## The limit DNE
\text{undefined} ## is undefined
\mathbb{R} ## all real x
\mathbb{Z} ## all integers
\mathbb{Z} ## \text{the set of integers}
# signs, ratios, fractions and roots in words
-7 ## minus 7
-7 ## negative 7
-7 ## negative seven
-7 ## minus seven
-\frac12 ## minus one half
-\frac{1}{2} ## negative 1/2
7 ## positive 7
7 ## plus 7
3:5 ## 3 to 5
3:5 ## the ratio is 3 to 5
2:3:4 ## 2 to 3 to 4
\frac{2}{3} ## 2 out of 3
16 ## 2 to the power of 4
\sqrt{2} ## square root of 2
\sqrt[3]{2} ## cube root of 2
\frac{1}{4} ## 1 over 4
6 ## 2 times 3
-12 ## minus 12
-12 ## negative twelve
-0.5 ## negative 0.5
-\frac{3}{4} ## negative three fourths
-x ## negative x
2-\sqrt3 ## 2 minus \sqrt{3}
2+\sqrt3 ## 2 plus \sqrt{3}
1:4 ## 1 to 4
1:4 ## \text{1 to 4}
2:1 ## two to one
\frac{1}{6} ## 1 in 6
\frac{1}{6} ## 1 out of 6
\frac{5}{6} ## five out of six
1000 ## a thousand
x^2 ## x squared
x^3 ## x cubed
2\sqrt3 ## 2 times the square root of 3
\sqrt{10} ## the square root of 10
2^{10} ## 2 to the 10th power
5! ## 5 factorial
\frac{\pi}{4} ## pi over 4
# a base as a program, a word or a bracket writes it
2A7_{16} ## 0x2A7
2A7_{16} ## 2A7
2A7_{16} ## 2A7_{\text{hex}}
1011_2 ## 0b1011
1011_2 ## 1011 in base 2
1011_2 ## 1011_{two}
17_8 ## 0o17
FF_{16} ## 0xFF
1011_2 ## 1011 binary
3F_{16} ## 0x3F
3F_{16} ## 3F
3F_{16} ## 3F \text{ in base } 16
10110_2 ## 0b10110
10110_2 ## 10110 in binary
245_7 ## 245 (in base 7)
245_7 ## N = 245_7
# rows of a function by cases in any order; the last may be the rest
\begin{cases}x & x\ge0\\-x & x<0\end{cases} ## \begin{cases}-x & x<0\\x & x\ge0\end{cases}
\begin{cases}x & x\ge0\\-x & x<0\end{cases} ## \begin{cases}x & x\ge0\\-x & \text{otherwise}\end{cases}
\begin{cases}1 & x=0\\0 & x\neq0\end{cases} ## \begin{cases}1, & \text{if } x=0,\\0, & \text{otherwise.}\end{cases}
f(x)=\begin{cases}x & x\ge0\\-x & x<0\end{cases} ## \begin{cases}-x, & x<0\\x, & x\geq0\end{cases}
f(x)=\begin{cases}x^2 & x<1\\2x-1 & x\geq1\end{cases} ## f(x)=\begin{cases}2x-1, & x\geq1\\x^2, & x<1\end{cases}
\begin{cases}0 & x<0\\x & 0\le x\le1\\1 & x>1\end{cases} ## \begin{cases}1 & x>1\\x & 0\le x\le1\\0 & x<0\end{cases}
# residues and chains of equations in any order
n\equiv 0,1\pmod 3 ## n\equiv 1,0\pmod{3}
n\equiv 2\pmod 5 ## n=5k+2
a=b=c ## c=b=a
a=b=c ## a=c=b
# relations in words and in other signs
x\ge2 ## x≧2
x\le2 ## x≦2
x\ge2 ## x is at least 2
x\ge2 ## x \text{ is at least } 2
x\ge2 ## x is greater than or equal to 2
x>2 ## x is greater than 2
x\le2 ## x is at most 2
x<2 ## x is less than 2
(3,5) ## between 3 and 5
3<x<5 ## x is between 3 and 5
[3,5] ## between 3 and 5 inclusive
x\geq-3 ## x ≧ -3
x\geq-3 ## x is at least -3
x\geq-3 ## at least -3
x<5 ## less than 5
x<5 ## x is less than 5
x<5 ## x is smaller than 5
x\le5 ## no more than 5
x>0 ## x is positive
1\le x\le4 ## x is between 1 and 4, inclusive
1<x<4 ## x between 1 and 4
[0,\infty) ## \mathbb{R}_{\ge 0}
x \ne -1, 2 ## x\ne-1 \text{ and } x\ne2
# values of names in any order, lists with words
\pm3 ## +-3
\pm3 ## plus or minus 3
(x,y)=(2,3) ## y=3, x=2
(2,3) ## x=2 and y=3
(3,-1) ## x = 3 \text{ and } y = -1
(a,b)=(1,2) ## b=2,a=1
# families with an integer parameter
x=2\pi n, n\in\mathbb{Z} ## 2k\pi, k\in\mathbb{Z}
x=\frac{\pi}{4}+k\pi, k\in\mathbb{Z} ## x=\frac{\pi}{4}+n\pi
x=\frac{\pi}{4}+k\pi, k\in\mathbb{Z} ## \frac{\pi}{4}+\pi n, n\in\mathbb{Z}
x=\frac{\pi}{4}+k\pi (k\in\mathbb{Z}) ## x=k\pi+\frac{\pi}{4}
\frac{\pi}{2}+k\pi ## \frac{\pi}{2}+n\pi, n \text{ is an integer}
\{x\mid x=k\pi,k\in\mathbb{Z}\} ## x=n\pi, n\in\mathbb{Z}
3k+1, k\in\mathbb{Z} ## 3n+1, n\in\mathbb{Z}
x=k\pi, k\in\mathbb{Z} ## x=\pi k where k is any integer
x=\frac{\pi}{4}+k\pi, k\in\mathbb{Z} ## x=-\frac{3\pi}{4}+k\pi, k\in\mathbb{Z}
2k+1, k\in\mathbb{Z} ## 2k-1, k\in\mathbb{Z}
\frac{\pi}{6}+2\pi n, n\in\mathbb{Z} ## \frac{\pi}{6}+2k\pi
x=n\pi ## x=n\pi, n\in\mathbb{Z}
x=n\pi, n\in\mathbb{Z} ## x = k\pi \quad (k \in \mathbb{Z})
x=\frac{\pi}{2}+n\pi, n\in\mathbb{Z} ## x=\frac{(2n+1)\pi}{2}
x=\frac{\pi}{2}+n\pi, n\in\mathbb{Z} ## x = 90^\circ+180^\circ n
x=(-1)^n\frac{\pi}{6}+n\pi, n\in\mathbb{Z} ## x=\frac{\pi}{6}+2n\pi \text{ or } x=\frac{5\pi}{6}+2n\pi, n\in\mathbb{Z}
n=6k+1, k\in\mathbb{Z} ## n\equiv1\pmod6
n\equiv1\pmod6 ## n=6k+1 \text{ for some integer } k
\{5k+3 : k\in\mathbb{Z}\} ## n\equiv 3\pmod5
"""

ONE_WAY = r"""
3:5 ## 6:10
2:3 ## 10:15
# an arbitrary constant may have another name, and a constant more or less is another answer
\frac{x^3}{3}+C ## \frac13x^3+K
\frac{x^3}{3}+C ## \frac{1}{3} x^{3} + k
y=Ce^{2x} ## y=ke^{2x}
y=Ce^{2x} ## Ae^{2x}
\frac{x^2}{2}+C ## y=\frac{x^2}{2}+K
y = Ce^{2x} ## y(x) = C e^{2x}
\tan x - x + C ## \tan(x)-x+K
y=C_1e^{2x}+C_2e^{3x} ## y(x)=Ae^{2x}+Be^{3x}
y=\frac{C}{x} ## y=\frac{k}{x}
# a name, a sum of unknowns that was asked for, or a chain of equal numbers may stand before the number
204 ## m+n=204
204 ## m + n = 125 + 79 = 204
204 ## p+q = 204
204 ## a+b+c=204
73 ## $m+n=64+9=73$
113 ## 100m+n=113
25 ## p+q+r = 5+9+11 = 25
18 ## AB + BC = 18
37 ## $m+n = 37$
55 ## m+n = 17 + 38 = 55
601 ## a + b = 601
149 ## $p + q + r = 100+40+9 = 149$
21 ## 10a+b=21
50 ## (a+b)=50
# no solution, infinitely many, does not exist, and sets of numbers in words
\mathbb{R} ## R
"""
