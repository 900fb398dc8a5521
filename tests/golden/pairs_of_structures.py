"""Pairs of answers that are more than a number: relations, sets, matrices, lists, choices and words.

One pair a line, `gold ## answer`; a line with # in front is the reason for the pairs below it.
"""

SAME = r"""
# letters side by side are a product where no word can be meant
xyz ## zyx
# systems, congruences, chains and named values, however they are laid out
f^{-1}(x)=\frac{x-1}{2} ## \frac{x-1}{2}
\begin{cases}x=1\\y=2\end{cases} ## x=1, y=2
\begin{cases} x=1 \\ y=2 \end{cases} ## (1,2)
m=n=3 ## m=3,n=3
x\equiv 3\pmod{7} ## 3\pmod 7
x\equiv 3\pmod{7} ## x \equiv 3 \mod 7
x\equiv 3\pmod 7 ## x\equiv 10\pmod 7
x\equiv 3\pmod 7 ## x \equiv -4 (mod 7)
y=\begin{cases}1&\text{if }x>0\\0&\text{otherwise}\end{cases} ## y=\begin{cases}1,&x>0\\0,&\text{otherwise}\end{cases}
11 ## x\approx11
# an inequality that is not solved is the set that solves it
|x-2|<1 ## 1<x<3
|x-3|<2 ## (1,5)
(1,5) ## |x-3|<2
|x|>2 ## (-\infty,-2)\cup(2,\infty)
x\ne\pm2 ## (-\infty,-2)\cup(-2,2)\cup(2,\infty)
-3<x<3 ## |x|<3
-3 \leq x \leq 3 ## |x|\le 3
x^2<4 ## -2<x<2
x^2\ge 4 ## x\le-2\text{ or }x\ge2
x>2, x\neq 3 ## (2,3)\cup(3,\infty)
x < 2 \cup x > 3 ## (-\infty,2)\cup(3,\infty)
x \geq -3, x \neq 2 ## [-3,2)\cup(2,\infty)
|x-3|\le 2 ## [1,5]
2x>4 ## (2,\infty)
x^2>0 ## x\neq 0
\frac{1}{x}>1 ## (0,1)
(x-1)(x-3)<0 ## 1<x<3
x^3>8 ## x>2
x^2-4x+3\ge0 ## (-\infty,1]\cup[3,\infty)
1\leq|z|\leq \frac{3}{2} ## z\in[-\frac32,-1]\cup[1,\frac32]
# a comma between two bounds means that both hold
x<3,x>-1 ## -1<x<3
x\not=2 ## x\neq2
# brackets that turn outward, U for a union, and the reals in words
(0,1) ## ]0,1[
[0,1) ## [0,1[
(-\infty,\infty) ## \text{all real numbers}
\mathbb{R} ## all real numbers
(-\infty,0)\cup(0,\infty) ## \mathbb{R} - \{0\}
(1,2) \cup (3,4) ## (1,2) U (3,4)
(-\infty,-1] \cup [1,\infty) ## |x|\ge 1
(2, \infty) ## (2,inf)
(-\infty,0] ## ]-\infty,0]
(-\infty,0)\cup(0,\infty) ## all real numbers except 0
(0,\infty) ## \mathbb{R}^+
# arithmetic on matrices, and determinants
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## [[1,2],[3,4]]
\begin{pmatrix}1\\2\end{pmatrix} ## \binom{1}{2}
-2 ## \begin{vmatrix}1&2\\3&4\end{vmatrix}
\det\begin{pmatrix}1&2\\3&4\end{pmatrix} ## -2
\begin{pmatrix}1&0\\0&1\end{pmatrix}\begin{pmatrix}1&2\\3&4\end{pmatrix} ## \begin{pmatrix}1&2\\3&4\end{pmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix}+\begin{pmatrix}1&0\\0&1\end{pmatrix} ## \begin{pmatrix}2&2\\3&5\end{pmatrix}
\begin{pmatrix}0&1\\1&0\end{pmatrix} ## \begin{pmatrix}0&1\\1&0\end{pmatrix}^{-1}
\begin{vmatrix}a&b\\c&d\end{vmatrix} ## ad-bc
\begin{pmatrix}1&2\\3&4\end{pmatrix}^2 ## \begin{pmatrix}7&10\\15&22\end{pmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix}^T ## \begin{pmatrix}1&3\\2&4\end{pmatrix}
# several choices, glued or with commas; bold letters
B,D ## BD
BD ## B, D
ABD ## A, B, D
C ## 【C】
A,B,C,D ## ABCD
B ## \mathbf{(B)}\ 3
# a list in a set, and signs in a point
(1,1),(-1,-1) ## \pm(1,1)
1,2,\ldots,10 ## 1,2,...,10
2, 3 ## x \in \{2,3\}
2,3 ## n\in\{2,3\}
(\pm 1, 0) ## (-1,0),(1,0)
(\pm1,\pm2) ## (1,2),(1,-2),(-1,2),(-1,-2)
# both signs, however written
\pm3 ## +/-3
(\pm1,0) ## (1,0),(-1,0)
# the empty set in words, named sets and points
\{1,2\} ## S=\{1,2\}
\emptyset ## \text{empty set}
P(1,2) ## (1,2)
A(1,2) ## (1,2)
(1,2,3) ## [1,2,3]
# articles, plurals and quotes say nothing
\text{red} ## "red"
\text{No solution} ## no solutions
\text{No real solutions} ## no real solution
\text{DNE} ## does not exist
\text{parabola} ## a parabola
\text{circle} ## \text{a circle}
\text{the circle} ## circle
# the set before the condition of a set of integers counts, and that of all real numbers does not
\{x \in \mathbb{R} : x^2<2\} ## (-\sqrt2,\sqrt2)
\{x \in \mathbb{Z} : x>2\} ## x>2, x\in\mathbb{Z}
\{x \in \mathbb{Z} : x<2, x>-5\} ## \{x \in \mathbb{Z} \mid -5<x<2\}
\{x \in \mathbb{Z} : x<2 \text{ or } x>5\} ## \{x \in \mathbb{Z} : x>5 \text{ or } x<2\}
\{x \in \mathbb{Z} : x\equiv1\pmod3\} ## x\equiv1\pmod3
\{n \in \mathbb{N} : n\ge3\} ## n\ge3
\{n \in \mathbb{N} : 3\le n\} ## n\ge3
\{n \in \mathbb{Z} : 3\le n\} ## \{n \in \mathbb{Z} : n\ge3\}
x\in\{x \in \mathbb{Z} : x<5\} ## \{x \in \mathbb{Z} : x<5\}
"""

DIFFERENT = r"""
# an expression is another one as soon as one point tells them apart
3x ## x^3
\frac{a}{b+c} ## \frac{a}{b}+\frac{a}{c}
\sin(x+y) ## \sin x+\sin y
\ln(xy) ## \ln x \ln y
a^{m+n} ## a^m+a^n
x^2+2x ## x^2-2x
n! ## n
k(k+1) ## k^2+1
\frac{n(n+1)}{2} ## \frac{n(n-1)}{2}
x+y ## xy
x_1+x_2 ## x_1x_2
\int_0^1 x\,dx ## 1
\lim_{x\to0} x ## 5
2^n+1 ## 2^{n+1}
# functions that go in steps are told apart where the steps are large
\lfloor\sqrt{n-1}\rfloor ## T\lfloor\sqrt{n-1}\rfloor
\lfloor\sqrt[3]{n}\rfloor ## \lfloor\sqrt[4]{n}\rfloor
# values go with their names, and an identity says nothing
m=n=3 ## 3
m=n=3 ## m=3
x\equiv 3\pmod 7 ## x=3
\begin{cases}x=1\\y=2\end{cases} ## x=2, y=1
\begin{cases}x=1\\y=2\end{cases} ## (2,1)
f^{-1}(x)=x+1 ## x-1
f^{-1}(x)=x+1 ## f(x)=x+1
y=x ## y=-x
x=1 ## 1=1
y=3x+1 ## y=3x
a=2,b=3 ## a=2
2x+3y=6 ## 2x+3y=-6
x^2=4 ## x=2
y = x^2 ## y^2 = x
x=1,y=2 ## 2,1
(x-2)^2+(y-3)^2=25 ## (x+2)^2+(y+3)^2=25
(x-2)^2+(y-3)^2=25 ## (x-2)^2+(y-3)^2=5
a_{n+1}=2a_n ## a_n=2a_{n+1}
x = \frac{\pi}{4} + k\pi, k \in \mathbb{Z} ## x=\frac{\pi}{4}+2k\pi, k\in\mathbb{Z}
11 ## 12\approx 11
5 ## x\approx 5 or 6
# the set must solve it, ends included
|x|<2 ## x<2
|x|<2 ## (-\infty,2)
x^2<4 ## (-\infty,4)
x^2<4 ## (-4,4)
x^2<4 ## [-2,2]
|x-3|\le 2 ## (1,5)
2x>4 ## (4,\infty)
|x|>2 ## (2,\infty)
x\ne 2 ## (2,\infty)
x\neq\pm2 ## x\neq 2
x>2, x\ne3 ## x>2
x^2>0 ## \mathbb{R}
a>2 ## b>2
(2,\infty) ## x\ge 2
x>2\text{ and }x<3 ## x>2\text{ or }x<3
-1<x<1 ## x<1
x<1\text{ or }x>3 ## x<1
x^3>8 ## x>8
1\leq|z|\leq \frac{3}{2} ## z\in[-\frac32,-1)\cup[1,\frac32]
1\leq|z|\leq \frac{3}{2} ## [1,\frac32]
# an end, a bracket or a point makes another set
(0,1) ## ]0,1]
[0,1] ## ]0,1[
\mathbb{R} ## all integers
\mathbb{R} ## all positive real numbers
(-\infty,0)\cup(0,\infty) ## all real numbers
(1,2) \cup (3,4) ## (1,2) U (3,5)
[1,2] ## 1,2
(1,2) ## (1;3)
(-1,1) ## |x|<2
(1,3) ## \{1,3\}
# cells, shape and order all count
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## [[1,3],[2,4]]
\begin{pmatrix}1\\2\end{pmatrix} ## \binom{2}{1}
-2 ## \begin{vmatrix}1&2\\4&3\end{vmatrix}
\begin{vmatrix}1&2\\3&4\end{vmatrix} ## 2
\begin{vmatrix}a&b\\c&d\end{vmatrix} ## ad+bc
\begin{pmatrix}1&2\\3&4\end{pmatrix}^2 ## \begin{pmatrix}1&4\\9&16\end{pmatrix}
\begin{pmatrix}1&0\\0&1\end{pmatrix} ## 1
\begin{pmatrix}1&2\end{pmatrix} ## (1,2,3)
5 ## \begin{pmatrix}5\end{pmatrix}\begin{pmatrix}5\end{pmatrix}
\begin{pmatrix}0&0\\0&0\end{pmatrix} ## 0
\begin{pmatrix}1&2\\3&4\end{pmatrix} ## \begin{pmatrix}1&2\\3\end{pmatrix}
# all choices and no other
B,D ## B,C
BD ## B
A,C ## A,C,D
B ## BD
A ## A,A,B
(A) ## (A),(B)
C ## (D) 12
C ## 12 (D)
# two forms of a value are one answer, two values are not
\frac{7}{2} ## \frac{7}{2} \text{ or } 3
\frac{7}{2} ## 3.5\text{ or }4
# all answers, and each with its name
a=2, b=3 ## 3, 2
2,3 ## n\in\{2,4\}
2,3 ## [2,3]
2,3 ## n \in (2,3)
a=2,b=3 ## 3,2
5 ## x_1=5,x_2=6
1,2 ## 1 or 2 or 3
(1,2) ## (1,2),(2,1)
2, 3 ## 2 \cdot 3
2, 3 ## 2+3
2, 3 ## 23
10, 20, 30 ## 60
(\pm 1, 0) ## (1,0)
# both signs are needed
\pm3 ## +3
2\pm1 ## 3
\pm\sqrt2 ## \pm2
\pm 3 ## -3 < x < 3
\pm3 ## |3|
# another radicand, factor or degree
\sqrt{2} ## \sqrt{-2}
\sqrt{12} ## 2\sqrt{6}
\sqrt{12} ## 12
\sqrt{a^2+b^2} ## a+b
\sqrt{3}/2 ## \sqrt{3/2}
2\sqrt3 ## \sqrt{6}
\sqrt{x^2} ## x
\sqrt[3]{9} ## 3
# order in tuples, brackets of intervals, and what is in a set
\emptyset ## \text{nonempty set}
\{1,2\} ## S=\{1,3\}
A(1,2) ## (2,1)
(1,2,3) ## [3,2,1]
(1,2) ## [1,2)
(0,0) ## 0
(0,0) ## \{0\}
\{0\} ## \emptyset
\{1\} ## 2
(2,3) ## 2+3i
\langle 1,2\rangle ## \langle 2,1\rangle
# a word more or less is another statement
\text{circle} ## semicircle
\text{a} ## the
\text{bus} ## bu
\text{DNE} ## exists
\text{red} ## red and blue
\text{Alice} ## not Alice
\text{Alice} ## Alice or Bob
\text{yes} ## "no"
\text{increasing} ## not increasing
\text{four} ## five
\text{four} ## 5
\text{prime} ## not prime
\text{true} ## not true
\text{Alice, Bob} ## Alice
\text{north} ## northeast
# integers or rational numbers between two bounds are no interval
\{x \in \mathbb{Z} : x>2\} ## (2,\infty)
\{x \in \mathbb{Z} : x>2\} ## \{x \in \mathbb{R} : x>2\}
\{n \in \mathbb{Z} : 1<n<5\} ## (1,5)
\{x \in \mathbb{Q} : x^2<2\} ## (-\sqrt2,\sqrt2)
\{x \in \mathbb{N} : x\ne2\} ## x\ne2
# nothing may be left before the colon
\{2k : k\in\mathbb{Z}\} ## \{2k 5 : k\in\mathbb{Z}\}
"""
