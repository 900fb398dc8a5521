"""Wrong answers that look like the right ones of `pairs_of_forms`, one pair a line, `gold ## answer`."""

DIFFERENT = r"""
# an arbitrary constant may have another name, and a constant more or less is another answer
x^2+C ## x^2
x^2 ## x^2+C
x^2+C ## x^3+C
x^2+C ## x^2+x+C
x^2+C ## x^2-x+c
x^2+C ## 2x^2+C
\ln|x|+C ## \ln|x+1|+C
C_1e^x+C_2e^{-x} ## C_1e^x+C_1e^{-x}
C_1e^x+C_2e^{-x} ## C_1e^x+C_2e^{-2x}
C_1e^x+C_2xe^{x} ## C_1e^x+C_2e^{x}
y=Ce^{2x} ## y=Ce^{-2x}
y=Ce^{2x} ## y=e^{2x}
a+b+c ## a+b+k
a+b+c ## a+b+C
A+B+C ## A+B+K
x^2+C ## x^2+5
x^2+C ## x^2+y
mx+c ## mx+k
2x+c ## 3x+c
\sin x+C ## \cos x+C
y=Ce^{2x} ## y=Ce^{2x}+C
\ln|\sec x|+C ## \ln|\cos x|+C
\frac{1}{2}e^{2x}+C ## e^{2x}+C
-\frac{1}{x}+C ## \frac{1}{x}+C
-\frac1x+C ## -\frac1x
y=C_1e^{2x}+C_2e^{3x} ## y=C_1e^{2x}+C_2e^{-3x}
y=C_1e^{2x}+C_2e^{3x} ## y=C_1e^{2x}
y=C_1e^{2x}+C_2e^{3x} ## y=e^{2x}+e^{3x}
y=(C_1+C_2x)e^{x} ## y=(C_1+C_2)e^x
y=\frac{C}{x} ## y=Cx
\frac{x^2}{2}+C ## \frac{x^2}{2}+Cx
\frac{x^2}{2}+C ## \frac{x^2}{2}+x
\sin x+C ## \sin x+\cos x
a^2+b^2 ## c^2
2\pi C ## 2\pi k
\frac{1}{2}bh ## \frac12 bk
# a name, a sum of unknowns that was asked for, or a chain of equal numbers may stand before the number
12 ## x+y=12
204 ## m+n=205
204 ## m+n=125+78=204
204 ## m+n=125+79=205
204 ## x+1=204
204 ## m=125, n=79
42 ## x=41=42
42 ## 42=41
5 ## 2x=5
4 ## x^2=4
4 ## \log x=4
4 ## 2+2=5
x=5 ## y=5
204 ## m+n
5 ## -x=5
8 ## x^3=8
5 ## 3x+2=5
5 ## 5=5x
37 ## m+n=38
37 ## m=18, n=19
37 ## m+n=37+1
55 ## m+n=17+37=55
55 ## m+n
55 ## m+n<55
13 ## \frac{p}{q}=\frac{1}{13}
91 ## 7\cdot 13=92
15 ## AB+15
12 ## 3x=12
12 ## x-3=12
12 ## y=3x+12
12 ## \sqrt{x}=12
# vectors: tuples, columns, angle brackets, unit vectors, and arithmetic on them
(1,2) ## \langle 2,1\rangle
\langle 1,2\rangle ## \mathbf{i}-2\mathbf{j}
\langle 1,2\rangle ## 2\mathbf{i}+\mathbf{j}
\begin{pmatrix}1\\2\end{pmatrix} ## (2,1)^T
\begin{pmatrix}1&2\end{pmatrix} ## \begin{pmatrix}1\\2\end{pmatrix}
(2,4) ## 2(1,3)
(2,4) ## 2(2,4)
(2,4) ## (1,2)
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## [[1,3],[2,4]]
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## \begin{pmatrix}1&2\\3&4\end{pmatrix}^T
\langle 1,2,3\rangle ## \langle 1,2\rangle
3\mathbf{i}-4\mathbf{k} ## 3\mathbf i-4\mathbf j
1+2i ## \mathbf{i}+2\mathbf{j}
\vec{a}+2\vec{b} ## \vec{b}+2\vec{a}
\begin{pmatrix}2\\4\end{pmatrix} ## \frac12\begin{pmatrix}2\\4\end{pmatrix}
\langle 2,-3,5\rangle ## 2\mathbf{i}+3\mathbf{j}+5\mathbf{k}
\langle 2,-3,5\rangle ## 2\mathbf{i}-3\mathbf{j}
\langle 2,-3\rangle ## \langle -3,2\rangle
\begin{pmatrix}2\\-3\end{pmatrix} ## (-3,2)
\begin{pmatrix}2\\-3\end{pmatrix} ## \begin{pmatrix}2&-3\end{pmatrix}
(4,6) ## 2(2,6)
(4,6) ## 3\langle2,3\rangle
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## [[1,2],[4,3]]
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## (1,2,3,4)
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## -2
(1,2) ## 1+2
5\mathbf{j} ## 5
2i+3j ## 2+3j
3+4i ## (3,4)
(2,3) ## 2i-3j
# combinations and permutations in the notations of many countries
184756 ## C(20,9)
184756 ## P(20,10)
\binom{20}{10} ## \frac{20}{10}
184756 ## 20P10
604800 ## C(10,7)
604800 ## 10C7
604800 ## P(10,3)
(20,10) ## C(20,10)+1
\binom{n}{2} ## \binom{n}{3}
10 ## C(2,5)
10 ## 5P2
\binom{n}{k} ## C_k^n
120 ## C(10,4)
120 ## P(10,3)
720 ## C(10,3)
120 ## 10C4
\binom{n+1}{2} ## C(n,2)
10 ## 10C10
(8,3) ## C(8,3)=57
56 ## 8P3
3 ## C(10,3)
# words of one meaning
\text{circle} ## It is not a circle
\text{odd} ## even
\text{odd} ## not odd
\text{odd} ## even function
\text{odd} ## neither even nor odd
\text{neither} ## even
\text{neither} ## both
\text{Yes} ## No
\text{True} ## False
\text{converges} ## diverges
\text{converges} ## does not converge
\text{increasing} ## decreasing
\text{parallel} ## perpendicular
\text{parallel} ## not parallel
\text{Saturday} ## Sunday
\text{isosceles} ## scalene triangle
\text{Yes} ## Yes and no
\text{acute} ## obtuse
\text{Friday} ## Thursday
\text{Friday} ## not Friday
\text{hyperbola} ## parabola
\text{hyperbola} ## The graph is not a hyperbola
\text{obtuse} ## acute triangle
\text{neither} ## odd
\text{Yes} ## No, it is not
\text{Yes} ## not yes
\text{No} ## Yes, it is
\text{Yes} ## Yes, it is not
\text{True} ## The statement is false
\text{True} ## not true
\text{irrational} ## rational
\text{convergent} ## divergent
\text{absolutely convergent} ## conditionally convergent
\text{Plan A} ## Plan B
\text{regular hexagon} ## hexagon
\text{straight line} ## curve
\text{red} ## red and blue
\text{both} ## neither
# no solution, infinitely many, does not exist, and sets of numbers in words
\text{no solution} ## infinitely many solutions
\text{no solution} ## one solution
\text{no solution} ## 0
\emptyset ## \{0\}
\emptyset ## 0
\emptyset ## \{\emptyset\}
\text{infinitely many} ## 100
\text{infinitely many} ## none
\text{does not exist} ## 0
\text{does not exist} ## \infty
\text{does not exist} ## exists
\text{undefined} ## 0
\text{all real numbers} ## x>0
\mathbb{R} ## \mathbb{Z}
\mathbb{R}\setminus\{2\} ## \mathbb{R}
\mathbb{R}\setminus\{2\} ## x\ne3
\emptyset ## \text{one solution}
\emptyset ## \mathbb{R}
\text{no solution} ## infinite solutions
\infty ## -\infty
\text{DNE} ## 1
\text{DNE} ## exists
\mathbb{R} ## \mathbb{Q}
\mathbb{R} ## \text{all integers}
(-\infty,0)\cup(0,\infty) ## \mathbb{R}\setminus\{1\}
(-\infty,0)\cup(0,\infty) ## (0,\infty)
\text{none} ## one
\text{infinitely many solutions} ## two solutions
\infty ## 1000000
# signs, ratios, fractions and roots in words
-7 ## 7
-7 ## positive 7
7 ## minus 7
7 ## negative 7
-7 ## minus 8
3:5 ## 5 to 3
3:5 ## 3 to 4
7 ## minus seven
8 ## 3 to 5
3 ## 3 to 5
-12 ## 12
-12 ## plus 12
1:4 ## 4 to 1
1:4 ## 1 to 5
\frac{1}{6} ## 1 out of 5
\frac{1}{6} ## 6 out of 1
x^2 ## x cubed
2-\sqrt3 ## 2 plus \sqrt{3}
2\sqrt3 ## 3 times the square root of 2
-\frac34 ## three fourths
2:1 ## one to two
# a base as a program, a word or a bracket writes it
2A7_{16} ## 2A8_{16}
2A7_{16} ## 0x2A8
1011_2 ## 1011_3
1011_2 ## 0x1011
1011_2 ## 1101_2
17_8 ## 0x17
1011_2 ## 1011_{10}
2A7_{16} ## 2A7_{12}
3F_{16} ## 0x3E
3F_{16} ## 3F_{17}
10110_2 ## 10110_8
10110_2 ## 0o10110
245_7 ## 245_8
245_7 ## 254_7
245_7 ## 245_{eight}
# rows of a function by cases in any order; the last may be the rest
\begin{cases}x & x\ge0\\-x & x<0\end{cases} ## \begin{cases}x & x<0\\-x & x\ge0\end{cases}
\begin{cases}x & x\ge0\\-x & x<0\end{cases} ## \begin{cases}x & x>0\\-x & x\le0\end{cases}
\begin{cases}x & x\ge0\\-x & x<0\end{cases} ## \begin{cases}-x & x\ge0\\x & \text{otherwise}\end{cases}
\begin{cases}x & x\ge0\\-x & x<0\end{cases} ## \begin{cases}x & x\ge1\\-x & \text{otherwise}\end{cases}
\begin{cases}x & x\ge0\\-x & x<0\end{cases} ## x
\begin{cases}0 & x<0\\x & 0\le x\le1\\1 & x>1\end{cases} ## \begin{cases}0 & x<0\\x & 0\le x<1\\1 & x>1\end{cases}
\begin{cases}x^2 & x<1\\2x-1 & x\geq1\end{cases} ## \begin{cases}x^2 & x<1\\2x+1 & x\geq1\end{cases}
\begin{cases}x^2 & x<1\\2x-1 & x\geq1\end{cases} ## \begin{cases}x^2 & x<1\\2x-1 & x\geq2\end{cases}
# residues and chains of equations in any order
n\equiv 0,1\pmod 3 ## n\equiv 1,2\pmod 3
n\equiv 0,1\pmod 3 ## n\equiv 0\pmod 3
n\equiv 2\pmod 5 ## n\equiv 2\pmod 7
n\equiv 2\pmod 5 ## n\equiv 3\pmod 5
a=b=c ## a=b=d
a=b=c ## a=b
a=b=c ## a=b, c=0
# relations in words and in other signs
x\ge2 ## x>2
x\ge2 ## x≦2
x\ge2 ## x is at most 2
x\ge2 ## x is greater than 2
x>2 ## x is less than 2
(3,5) ## [3,5]
3<x<5 ## 3<x
x<1\text{ or }x>3 ## 1<x<3
x<1\text{ or }x>3 ## x\le1\text{ or }x\ge3
x>2 ## \{x\mid x\ge2\}
(3,5) ## between 3 and 6
[3,5] ## (3,5)
x>2 ## y>2
x\geq-3 ## x\le-3
x\geq-3 ## x>-3
x\geq-3 ## x is at most -3
x<5 ## more than 5
x<5 ## x\le5
x<5 ## 5
1<x\le4 ## [1,4]
1<x\le4 ## [1,4)
x<-2\text{ or }x>2 ## -2<x<2
x<-2\text{ or }x>2 ## |x|\ge2
(0,1) ## \{0,1\}
[0,\infty) ## (0,\infty)
2x+3y\le6 ## 2x+3y\ge6
a>\frac12 ## b>\frac12
x>0 ## x is negative
# values of names in any order, lists with words
2,3 ## 2
2,3 ## 2,3,4
2,3 ## 2,4
\pm3 ## 3
\pm3 ## \pm 4
(x,y)=(2,3) ## x=3, y=2
(2,3) ## (3,2)
(2,3) ## x=3,y=2
2\pm\sqrt3 ## 2\pm\sqrt2
2\pm\sqrt3 ## -2\pm\sqrt3
(2,3),(4,5) ## (2,3)
(2,3),(4,5) ## (2,4),(3,5)
(x,y)=(2,3) ## (x,y)=(3,2)
(1,2) ## \{1,2\}
(3,-1) ## x=-1,y=3
(3,-1) ## (3,1)
(3,-1) ## [3,-1]
(a,b)=(1,2) ## a=2,b=1
A=5,B=7 ## A=7,B=5
2,3,5 ## 2,3
2,3,5 ## (2,3,5,7)
\{1,2,3\} ## \{1,2\}
(1,2),(3,4) ## (1,4),(3,2)
(1,-2,3) ## x=1,y=3,z=-2
# families with an integer parameter
x=\frac{\pi}{4}+k\pi, k\in\mathbb{Z} ## x=\frac{\pi}{4}+2k\pi, k\in\mathbb{Z}
x=\frac{\pi}{4}+k\pi, k\in\mathbb{Z} ## x=\frac{\pi}{4}
x=\frac{\pi}{4}+k\pi, k\in\mathbb{Z} ## x=-\frac{\pi}{4}+k\pi, k\in\mathbb{Z}
3k+1, k\in\mathbb{Z} ## 3k+2, k\in\mathbb{Z}
2\pi n ## \pi n
3n+1 ## 3k+2
\frac{\pi}{6}+2\pi n, n\in\mathbb{Z} ## \frac{\pi}{6}+\pi k
x=n\pi, n\in\mathbb{Z} ## x=2n\pi, n\in\mathbb{Z}
x=n\pi, n\in\mathbb{Z} ## x=\pi
n=6k+1, k\in\mathbb{Z} ## n\equiv1\pmod5
n=6k+1, k\in\mathbb{Z} ## n=6k-1
x=\frac{\pi}{2}+n\pi, n\in\mathbb{Z} ## x=n\pi
"""
