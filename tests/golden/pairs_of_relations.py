"""More pairs of answers in different notations: families, relations, sets, sentences, other languages.

One pair a line, `gold ## answer`; ONE_WAY holds for a gold and an answer in this order only.
"""

SAME = r"""
# equations with only space between them
a=1 \quad b=2 ## a=1, b=2
a=1 \quad b=2 ## b=2, \quad a=1
x=2 for y=3 ## x = 2, y = 3
# an arbitrary constant may have another name, and a constant more or less is another answer
x^2+C ## x^2 + C, C\in\mathbb{R}
F(x)=x^2+C ## x^2+c
x^2+C ## x^2 - C
\frac{1}{3}\sin(3x)+C ## \frac{\sin 3x}{3}+c_1
y=\pm\sqrt{x^2+C} ## y=\pm\sqrt{x^2+c}
y=\tan(x+C) ## y=\tan(x+c)
y=C_1+C_2x+C_3x^2 ## c_1+c_2x+c_3x^2
-\frac{1}{2}\cos^2 x+C ## \frac{1}{2}\sin^2 x+C
# vectors: tuples, columns, angle brackets, unit vectors, and arithmetic on them
\begin{pmatrix}1\\2\end{pmatrix} ## \left[1,2\right]^{\mathsf T}
\begin{pmatrix}1\\2\end{pmatrix} ## (1,2)^{\top}
\langle3,-4,0\rangle ## 3\hat{\mathbf{i}}-4\hat{\mathbf{j}}
3\hat{\mathbf{i}}-4\hat{\mathbf{j}} ## 3\mathbf{i}-4\mathbf{j}
3\hat{\mathbf{i}}-4\hat{\mathbf{j}} ## \langle 3,-4\rangle
3\overrightarrow{i}-4\overrightarrow{j} ## (3,-4)
-\mathbf{i}+\mathbf{j}-\mathbf{k} ## (-1,1,-1)
\frac{1}{\sqrt3}(\mathbf{i}+\mathbf{j}+\mathbf{k}) ## \left(\frac{1}{\sqrt3},\frac{1}{\sqrt3},\frac{1}{\sqrt3}\right)
\frac{\mathbf{i}+\mathbf{j}}{\sqrt2} ## \left\langle\frac{\sqrt2}{2},\frac{\sqrt2}{2}\right\rangle
(3,4) ## \begin{pmatrix}3\\4\end{pmatrix}
(3,4) ## \begin{bmatrix}3\\4\end{bmatrix}
(3,4) ## (1,2)+(2,2)
t(1,2,3) ## (t,2t,3t)
(t,2t,3t) ## t\langle1,2,3\rangle
\left\{\begin{pmatrix}1\\0\end{pmatrix},\begin{pmatrix}0\\1\end{pmatrix}\right\} ## \{(1,0),(0,1)\}
# combinations and permutations in the notations of many countries
120 ## C^{10}_{3}
120 ## C_{10}^{7}
120 ## \text{C}(10,3)
120 ## _{10}\mathrm{C}_3
120 ## P(6,3)
120 ## _6P_3
\binom{n}{2}+\binom{n}{4} ## C(n,2)+C(n,4)
\binom{n}{2}+\binom{n}{4} ## {}_nC_2+{}_nC_4
\frac{1}{\binom{52}{5}} ## \frac{1}{C(52,5)}
\frac{1}{\binom{52}{5}} ## \frac{1}{52C5}
\frac{C_4^2}{C_{10}^2} ## \frac{\binom42}{\binom{10}2}
\frac{C_4^2}{C_{10}^2} ## \frac{2}{15}
\frac{2}{15} ## \frac{C(4,2)}{C(10,2)}
# words of one meaning
\text{no solution} ## The equation has no solution
\text{no solution} ## no value of x
\text{no solution} ## The system has no solutions.
\emptyset ## Ø
\text{infinitely many} ## infinitely many values
\text{infinitely many} ## infinite number of solutions
\text{infinitely many solutions} ## The system has infinitely many solutions
\text{odd} ## f(x) is odd
\text{odd} ## f is an odd function
\text{odd} ## it is an odd function.
\text{even} ## f is even
3:5 ## 3 is to 5
3:5 ## the ratio 3:5
3:5 ## 3-to-5
\text{Monday} ## The day is Monday
\text{rhombus} ## ABCD is a rhombus
\text{at } x=3 ## x=3
x=3 ## at x = 3
# a base as a program, a word or a bracket writes it
2A7_{16} ## 2A7_{\mathrm{hex}}
2A7_{16} ## (2A7)_{\text{hex}}
1011_2 ## 1011_{\text{base }2}
1011_2 ## 1011 \text{ in base two}
1011_2 ## n=1011_2
# rows of a function by cases in any order; the last may be the rest
|x| ## \begin{cases}x & x\ge0\\-x & x<0\end{cases}
\begin{cases}x & x\ge0\\-x & x<0\end{cases} ## |x|
\begin{cases}x-2 & x\ge2\\2-x & x<2\end{cases} ## |x-2|
\begin{cases}x & x>0\\0 & \text{otherwise}\end{cases} ## \max(x,0)
\begin{cases}x & x>0\\0 & \text{otherwise}\end{cases} ## \frac{x+|x|}{2}
f(x)=|x-1| ## f(x)=\begin{cases}x-1 & x\ge1\\1-x & x<1\end{cases}
# residues and chains of equations in any order
n\equiv\pm1\pmod6 ## n\equiv1,5\pmod6
n\equiv 0,1\pmod 3 ## n=3k \text{ or } n=3k+1, k\in\mathbb{Z}
x\equiv 3\pmod7 ## x=7k+3
x\equiv 3\pmod7 ## x \equiv 3 \ (\text{mod } 7)
x=y=z ## z=y=x
# relations in words and in other signs
x\ge2 ## 2 or more
x\ge2 ## x \text{ greater than or equal to } 2
x\ge2 ## all x\ge 2
x\ge 2 ## {x : x >= 2}
x>2 ## x must be greater than 2
x>2 ## x is strictly greater than 2
2<x<7 ## x is greater than 2 and less than 7
2\le x\le7 ## x is between 2 and 7 inclusive
x\neq 3 ## x is not equal to 3
x\neq3 ## all reals except x=3
x\neq3 ## all x except 3
[2,\infty) ## {x | x ≥ 2}
# sets in a list are answers of their own, in any order
\{x|x\ge3\},\{x|x\ge0\} ## \{x\mid x\geq0\},\{x\mid x\geq3\}
\{x|x\ge3\},\{x|x\ge0\} ## [3,\infty),[0,\infty)
x\ge3, x\ge0 ## x\ge0, x\ge3
\{x|x<1, x>3\} ## x<1 \text{ or } x>3
x<1, x>3 ## (-\infty,1)\cup(3,\infty)
# rows behind one brace
f(x)=\left\{\begin{array}{ll}x&x>0\\2x&x\le0\end{array}\right. ## f(x)=\begin{cases}x&x>0\\2x&x\le0\end{cases}
\left\{\begin{array}{rll}x&\text{if}&x>0\\0&\text{if}&x\le0\end{array}\right. ## \begin{cases}x&x>0\\0&x\le0\end{cases}
\left\{\begin{array}{l}x=1\\y=2\end{array}\right. ## x=1, y=2
\left\{ \begin{aligned} x&=1\\y&=2\end{aligned} \right. ## x=1, y=2
\left\{\begin{matrix}x=1\\y=2\end{matrix}\right. ## (1,2)
# families with an integer parameter
x=\frac{\pi}{3}+2k\pi\text{ or }x=\frac{5\pi}{3}+2k\pi, k\in\mathbb{Z} ## x=\pm\frac{\pi}{3}+2k\pi, k\in\mathbb{Z}
(k\pi,0), k\in\mathbb{Z} ## (n\pi,0), n\in\mathbb{Z}
x=\frac{\pi}{4}+\frac{k\pi}{2}, k\in\mathbb{Z} ## x=\frac{\pi}{4}+k\pi,\ x=\frac{3\pi}{4}+k\pi,\ k\in\mathbb{Z}
x=\frac{\pi}{4}+\frac{k\pi}{2}, k\in\mathbb{Z} ## x=(2k+1)\frac{\pi}{4}
(1+2t,3t), t\in\mathbb{R} ## (1+2t,3t)
# solutions as competitions write them
f(x)=2x ## f(n)=2n
f(x)=x+1 ## f(y)=y+1
(3k+1,2k), k\in\mathbb{Z} ## (3n+1,2n), n\in\mathbb{Z}
\text{all primes} ## all prime numbers
n \geq 3 ## all n\ge3
\text{all even integers} ## all even numbers
# equations of lines and curves
y=\frac{12}{x} ## xy=12
xy=12 ## y=\frac{12}{x}
x=1+2t, y=3t, z=4 ## x=1+2s,y=3s,z=4
\vec r=(1,2)+t(3,4) ## (1+3t,2+4t)
# the values of a sign
y=\pm\frac{3}{2}x ## 3x\pm2y=0
# sets of numbers
x\in\{1,2\} ## x=1\text{ or }x=2
\text{all real numbers greater than }2 ## x>2
x>2 ## all real numbers greater than 2
x>2 ## \text{all } x > 2
x>2 ## x \text{ is any real number greater than } 2
# a number in a sentence
\text{odd} ## n is odd
n\text{ is even} ## even
12 ## There are 12 ways
12 ## The total is 12.
12 ## It is 12
12 ## x equals 12
12 ## x is 12
12 ## x is equal to 12
12 ## equals 12
12 ## exactly 12
12 ## = 12
12 ## :12
12 ## a total of 12
# yes and no in other languages
\text{Yes} ## да
\text{Yes} ## Sí
\text{Yes} ## 是
\text{No} ## нет
\text{No} ## 否
\text{No} ## nein
да ## Yes
\text{True} ## 正确
\text{False} ## falsch
# true is yes
\text{True} ## Yes
False ## no
# three values in square brackets are no interval
[3,5,7] ## 3, 5, 7
"""

ONE_WAY = r"""
# an arbitrary constant may have another name, and a constant more or less is another answer
y=Ce^{-x}+x-1 ## y=x-1+Ae^{-x}
y=\frac{1}{C-x} ## y=\frac{1}{K-x}
y=C_1+C_2x+C_3x^2 ## y=a_1+a_2x+a_3x^2
# a name, a sum of unknowns that was asked for, or a chain of equal numbers may stand before the number
204 ## 204 = m+n
204 ## $m+n=\boxed{204}$
204 ## m+n=125+79=\mathbf{204}
41 ## a+b+c+d = 41
252 ## m - n = 252
17 ## p^2+q=17
17 ## a_1+a_2=17
100 ## \alpha+\beta=100
# a sum of unknowns that is itself the answer may get a name
ab+cd ## S=ab+cd
mn-m-n ## N=mn-m-n
v_0+at ## v=v_0+at
"""

DIFFERENT = r"""
# an arbitrary constant may have another name, and a constant more or less is another answer
\ln\left|\frac{x-1}{x+1}\right|+C ## \ln|x-1|+\ln|x+1|+C
x\ln x-x+C ## x\ln x+C
y=Ce^{-x}+x-1 ## y=Ce^{-x}+x
y=Ce^{-x}+x-1 ## y=Ce^{-x}+Cx-1
y=\tan(x+C) ## y=\tan x+C
y=C_1+C_2x ## y=C_1+C_2x^2
\sin C ## \sin K
C ## K
5C ## 5K
x^2+C ## x^2+C=0
x+C ## 2x+C
# a name, a sum of unknowns that was asked for, or a chain of equal numbers may stand before the number
204 ## m+n=\frac{204}{2}
204 ## m+n+1=204
204 ## m+n\neq204
204 ## m=n+204
# vectors: tuples, columns, angle brackets, unit vectors, and arithmetic on them
(3,4) ## (1,2)+(2,1)
t(1,2,3) ## (t,2t,2t)
-\mathbf{i}+\mathbf{j}-\mathbf{k} ## (1,-1,1)
(3,4) ## 3+4
(3,4) ## 3\cdot4
(3,4) ## 34
\langle3,4\rangle ## 5
\begin{pmatrix}3\\4\end{pmatrix} ## \binom{4}{3}
12 ## (3,4)
(3,4,5) ## (3,4)
(0,5) ## [0,5]
# combinations and permutations in the notations of many countries
\frac{2}{15} ## \frac{C(4,2)}{C(10,3)}
120 ## P(10,3)
120 ## C^{10}_{4}
\binom{n}{2} ## P(n,2)
45 ## C(10,2)+1
# words of one meaning
\text{no solution} ## The equation has one solution
\text{no solution} ## has infinitely many solutions
\text{odd} ## f(x) is even
\text{odd} ## f is not odd
\text{rhombus} ## ABCD is a square
3:5 ## 5 is to 3
\text{infinitely many} ## finitely many
\text{Monday} ## The day is Tuesday
# a base as a program, a word or a bracket writes it
1011_2 ## 1011_{\text{base }3}
1011_2 ## 1010_2
11 ## 1011_3
1011_2 ## 111_2
# rows of a function by cases in any order; the last may be the rest
|x| ## \begin{cases}x & x\ge0\\x & x<0\end{cases}
|x| ## \begin{cases}x & x\ge1\\-x & x<1\end{cases}
|x| ## \begin{cases}x & x>0\\-x & x<0\end{cases}
|x| ## \begin{cases}-x & x\ge0\\x & x<0\end{cases}
x ## \begin{cases}x & x\ge0\\-x & x<0\end{cases}
# residues and chains of equations in any order
x=y=z ## x=y=-z
a=b=c=1 ## a=b=c=2
a=b=c=1 ## a=b=1
n\equiv\pm1\pmod6 ## n\equiv1\pmod6
n\equiv1,5\pmod 6 ## n\equiv1,4\pmod 6
x\equiv 3\pmod7 ## x=7k+4
x\equiv 3\pmod7 ## x=3k+7
# relations in words and in other signs
x\ge2 ## 2 or less
x\neq 3 ## x=3
x>2 ## x must be at least 2
2<x<7 ## x is greater than 2 and less than 8
2<x<7 ## x<2 \text{ or } x>7
(2,3)\cup(5,\infty) ## 2<x<3
(2,3)\cup(5,\infty) ## 2<x<3 \text{ and } x>5
x\ge2 ## x>=3
# families with an integer parameter
x=\frac{\pi}{4}+\frac{k\pi}{2}, k\in\mathbb{Z} ## x=\frac{\pi}{4}+k\pi
\frac{k\pi}{2} ## \frac{k\pi}{3}
(k\pi,0), k\in\mathbb{Z} ## (n\pi,1), n\in\mathbb{Z}
# solutions as competitions write them
f(x)=0, f(x)=x ## f(x)=x
f(x)=2x ## f(x)=2
f(x)=2x ## f(n)=2x
(3k+1,2k), k\in\mathbb{Z} ## (3n+2,2n), n\in\mathbb{Z}
\text{all positive integers} ## all integers
\text{all primes} ## all odd primes
\text{all even integers} ## all odd integers
n\ge3 ## n>3
n>2 ## n\ge2
n>2 ## n=3
\lfloor n/2\rfloor ## \lceil n/2\rceil
3:4 ## 4:3
2:3:5 ## 2:3:4
\sqrt3:1 ## \sqrt2:1
x=y ## x=-y
AB=CD ## AB=CE
\sin 15^\circ ## \cos 15^\circ
f'(x)=2x ## f(x)=2x
y'=2x ## y=2x
A\cos t+B\sin t ## A\sin t+B\cos t
x+c ## x+a
10 ## 0x10
16 ## 0x16
[-1,1] ## (-1,1)
-1\le k<3 ## -1<k<3
# equations of lines and curves
x+2y-3z=4 ## x+2y-3z=8
x+2y-3z=4 ## x+2y+3z=4
y=2x+1 ## y=-2x+1
(x-2)^2+y^2=9 ## (x-2)^2+y^2=3
y=x ## xy=x^2
y=\frac{12}{x} ## xy=13
y=\frac{12}{x} ## y=12x
x=3 ## y=3
x=1+2t, y=3t, z=4 ## x=1+3t,y=2t,z=4
\frac{x^2}{4}-\frac{y^2}{9}=1 ## \frac{y^2}{9}-\frac{x^2}{4}=1
y^2=8x ## x^2=8y
x=0 ## x^2=0
x=1 ## x^2=1
# complex numbers
1+i ## 1-i
\pm2i ## \pm2
2\operatorname{cis}\frac{\pi}{3} ## \sqrt3+i
5i ## 5
5i ## 5j+1
# the values of a sign
\pm\sqrt5 ## \sqrt5
\pm1,\pm2 ## 1,2
3\pm\sqrt2 ## 3+\sqrt2
(\pm1,0) ## (0,\pm1)
(\pm3,\pm4) ## (3,4),(-3,-4)
# sets of numbers
\{1,2\} ## \{1,3\}
\{1,2\} ## (1,2)
(1,2)\cup(2,3) ## (1,3)
\{-1\}\cup[0,1] ## [-1,1]
\mathbb{R}-\{0\} ## \mathbb{R}-\{1\}
x>2 ## all real numbers less than 2
# a number in a sentence
12 ## at least 12
12 ## less than 12
12 ## not 12
12 ## more than 12
12 ## about 12.5
12 ## either 12 or 13
12 ## 12 or 13
12 ## between 11 and 13
12 ## It is not 12
12 ## twelve hundred
n\text{ is even} ## n is odd
# yes and no in other languages
\text{Yes} ## нет
\text{No} ## 是
\text{Yes} ## 否
\text{True} ## 错误
\text{Yes} ## 不是
# sets in a list are answers of their own
\{x|x\ge3\},\{x|x\ge0\} ## x\ge0
\{x|x\ge3\},\{x|x\ge0\} ## \{x|x\ge5\},\{x|x\ge0\}
\{x|x\ge3\}\text{ and }\{x|x\ge0\} ## x\ge3
\{x|x<3\},\{x|x>-1\} ## -1<x<3
\{x|x<1\},\{x|x>3\} ## x<1
x\ge3, x\ge0 ## x\ge0
x>3 ## x>3, x>5
(0,\infty) ## x>0, x>1
(0,2),(1,3) ## 0<x<3
# rows behind one brace
\left\{\begin{array}{ll}x & x>0\\ -x & x\le 0\end{array}\right. ## \begin{cases}-x & x>0\\ x & x\le 0\end{cases}
\left\{\begin{array}{rll}x & \text{if} & x>0\\ -x & \text{if} & x\le 0\end{array}\right. ## x
\left\{\begin{array}{l}x=1\\y=2\end{array}\right. ## x=2, y=1
\left\{\begin{array}{l}x=1\\y=2\end{array}\right. ## x=1
# a sum of unknowns that is itself the answer may get a name, and nothing else
ab+cd ## S=ab+ce
ab+cd ## 2S=ab+cd
ab+cd ## S+1=ab+cd
m+n ## m+n=204
v_0+at ## v^2=v_0+at
# true is yes
True ## no
False ## Yes
True ## 1
False ## none
True ## True or False
Yes ## not true
# two values in square brackets are an interval, and three are in order
[3,5] ## 3, 5
[3,5,7] ## 7, 5, 3
[3,5,7] ## 3, 5
"""
