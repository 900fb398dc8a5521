"""More pairs of answers in different notations: a second look at every kind of `pairs_of_forms`.

One pair a line, `gold ## answer`; ONE_WAY holds for a gold and an answer in this order only.
"""

SAME = r"""
# an arbitrary constant may have another name, and a constant more or less is another answer
\frac{\sin^2x}{2}+C ## -\frac{\cos2x}{4}+C
\tan^{-1}x+C ## \arctan x+c
y=C_1\sin 3x+C_2\cos 3x ## y=A\cos3x+B\sin3x
y=C_1e^{-x}+C_2xe^{-x} ## y=(A+Bx)e^{-x}
# a name, a sum of unknowns that was asked for, or a chain of equal numbers may stand before the number
33 ## \text{The sum is } 33
# vectors: tuples, columns, angle brackets, unit vectors, and arithmetic on them
(10,-15) ## 5(2,-3)
(10,-15) ## -5(-2,3)
(10,-15) ## 10\mathbf i-15\mathbf j
(10,-15) ## 10\,\hat{\imath}-15\,\hat{\jmath}
(10,-15) ## 5\langle 2,-3\rangle
\langle 3,4\rangle ## [3,4]^T
\langle 3,4\rangle ## 3\vec{i}+4\vec{j}
\langle 3,4\rangle ## 4\mathbf{j}+3\mathbf{i}
\begin{pmatrix}4\\8\end{pmatrix} ## 2\cdot(2,4)
\begin{bmatrix}1\\0\\2\end{bmatrix} ## \mathbf{i}+2\mathbf{k}
# combinations and permutations in the notations of many countries
P(8,3) ## 336
P(8,3) ## {}^8P_3
P(8,3) ## 8P3
P(8,3) ## \frac{8!}{5!}
P(8,3) ## 8\cdot7\cdot6
C(15,4) ## {}_{15}C_4
C(15,4) ## 15C4
C(15,4) ## \frac{15!}{4!\,11!}
C(15,4) ## C(15,11)
\binom{9}{2} ## C_9^2
\binom{9}{2} ## 9 \text{ choose } 2
\binom{9}{2} ## 9C_2
# words of one meaning
\text{infinitely many} ## There are an infinite number of solutions.
\text{no solution} ## there are no such numbers
\text{no solution} ## no such integers exist
\text{no solution} ## has no solution
\text{no real roots} ## no real solutions
\text{no solution} ## does not have a solution
\text{no solution} ## There's no solution
\text{not a function} ## It is not a function
\text{converges} ## It converges
\text{converges} ## the sequence is convergent
\text{diverges} ## does not converge
\text{right triangle} ## It is a right triangle
\text{right triangle} ## right
\text{equilateral} ## an equilateral triangle
\text{isosceles triangle} ## isosceles
\text{parabola} ## It's a parabola
\text{ellipse} ## This is an ellipse.
\text{parallelogram} ## The quadrilateral is a parallelogram
\text{odd} ## odd integer
\text{undefined} ## The slope is undefined
\text{undefined} ## not defined
\text{does not exist} ## The limit does not exist.
\text{does not exist} ## no limit exists
\text{independent} ## The events are independent
\text{dependent} ## dependent events
\text{perpendicular} ## The lines are perpendicular
\text{skew} ## skew lines
-15 ## minus fifteen
-15 ## negative 15
\text{increasing} ## It is increasing
1 ## only one
2 ## There are two solutions
# a base as a program, a word or a bracket writes it
1A_{12} ## 1A
FF_{16} ## 0xff
FF_{16} ## FF
777_8 ## 0o777
777_8 ## 777 octal
777_8 ## 777 (octal)
# rows of a function by cases in any order; the last may be the rest
\begin{cases}0 & x=0\\1 & x\neq0\end{cases} ## \begin{cases}1 & x\neq0\\0 & x=0\end{cases}
\begin{cases}0 & x=0\\1 & x\neq0\end{cases} ## \begin{cases}0 & x=0\\1 & \text{else}\end{cases}
# residues and chains of equations in any order
n\equiv2,5\pmod7 ## n\equiv5,2\pmod7
n\equiv2,5\pmod7 ## n\equiv 2 \pmod 7 \text{ or } n\equiv 5\pmod 7
a=b=c ## a=b, b=c
# curves, sequences, logarithms and the kinds of number
\frac{\pi}{4}+k\pi ## \frac{\pi}{4}+k\pi, k\in\mathbb{Z}
x=\frac{k\pi}{3} ## x=\frac{k\pi}{3}, k\in\mathbb{Z}
\{x:x=2k,k\in\mathbb{Z}\} ## x=2n, n\in\mathbb{Z}
x = 2k, k\in\mathbb{Z} ## x\equiv0\pmod2
10 ## \text{max}=10
-4 ## \min = -4
a_n=3n ## a_k=3k
P(x)=x^2-1 ## P(t)=t^2-1
x=1,2 ## x\in\{1,2\}
# a name with its title is no product of letters
Mrs. Hilt ## \text{Mrs. Hilt}
"""

ONE_WAY = r"""
# an arbitrary constant may have another name, and a constant more or less is another answer
3x^2+C ## 3x^2+k
y=Ce^{3x} ## y=Ae^{3x}
# a name, a sum of unknowns that was asked for, or a chain of equal numbers may stand before the number
371 ## p+q+r=300+60+11=371
73 ## m + n = 72 + 1 = 73.
600 ## 100a+10b+c=600
"""

DIFFERENT = r"""
# an arbitrary constant may have another name, and a constant more or less is another answer
e^x+C ## e^x-x+C
-e^{-x}+C ## e^{-x}+C
\frac{\sin^2x}{2}+C ## \frac{\cos^2x}{2}+C
y=Ce^{3x} ## y=3Ce^{x}
y=C_1\sin 3x+C_2\cos 3x ## y=A\cos3x+B\sin2x
y=C_1\sin 3x+C_2\cos 3x ## y=A\cos3x
# a name, a sum of unknowns that was asked for, or a chain of equal numbers may stand before the number
371 ## p+q+r=300+60+11=372
371 ## p+q+r=300+60+10=371
73 ## m+n=73-1
73 ## m+n=73=72
8 ## 2^x=8
12 ## AB^2=144
12 ## x^2=12
# vectors: tuples, columns, angle brackets, unit vectors, and arithmetic on them
(10,-15) ## 5(2,3)
(10,-15) ## 10i+15j
(10,-15) ## 5+(2,-3)
\langle 3,4\rangle ## 4\mathbf i+3\mathbf j
\langle 3,4\rangle ## 3+4i
\begin{pmatrix}4\\8\end{pmatrix} ## 4(2,1)^T
\begin{bmatrix}1\\0\\2\end{bmatrix} ## \mathbf{i}+2\mathbf{j}
# combinations and permutations in the notations of many countries
P(8,3) ## C(8,3)
P(8,3) ## 8^3
C(15,4) ## P(15,4)
C(15,4) ## 15!/4!
\binom{9}{2} ## 9^2
\binom{9}{2} ## \frac{9}{2}
# words of one meaning
\text{diverges} ## converges
\text{converges} ## does not diverge... it oscillates
\text{not a function} ## a function
\text{right triangle} ## not a right triangle
\text{equilateral} ## isosceles triangle
\text{equilateral} ## not equilateral
\text{parallelogram} ## trapezoid
\text{clockwise} ## counterclockwise
\text{undefined} ## defined
\text{does not exist} ## The limit exists
\text{independent} ## dependent
\text{independent} ## not independent
\text{dependent} ## independent events
\text{skew} ## parallel lines
\text{Bob} ## Alice
-15 ## fifteen
-15 ## minus fifty
7 ## minus seven
2 ## There are three solutions
\text{no solution} ## no, there is a solution
\text{no solution} ## exactly one solution
\text{infinitely many} ## not infinitely many
\text{infinitely many} ## no solutions
\text{all real numbers} ## no real numbers
\text{all real numbers} ## all positive real numbers
\text{first quadrant} ## second quadrant
\text{increasing} ## not increasing
\text{increasing} ## strictly decreasing
\text{prime} ## not prime
\text{odd} ## odd or even
# a base as a program, a word or a bracket writes it
1A_{12} ## 1B_{12}
1A_{12} ## A1_{12}
FF_{16} ## FE_{16}
FF_{16} ## 0xF
777_8 ## 777_9
777_8 ## 0x777
# rows of a function by cases in any order; the last may be the rest
\begin{cases}0 & x=0\\1 & x\neq0\end{cases} ## \begin{cases}0 & x=0\\1 & x>0\end{cases}
\begin{cases}0 & x=0\\1 & x\neq0\end{cases} ## \begin{cases}0 & x=1\\1 & x\neq1\end{cases}
# residues and chains of equations in any order
n\equiv2,5\pmod7 ## n\equiv2,6\pmod7
n\equiv2,5\pmod7 ## n\equiv2\pmod7
a=b=c ## a=b=2c
x<y<z ## x<z<y
x\le y ## x\ge y
x\le y ## x<y
# curves, sequences, logarithms and the kinds of number
\log_2 x = 3 ## x=9
5 ## \ln x = 5
5 ## e^x=5
5 ## x^2 = 5
5 ## x-y=5
y=2x ## y=x/2
f^{-1}(x)=\sqrt{x} ## x^2
(1,2] ## [1,2[
\sqrt[3]{4} ## \sqrt{4}
3\sqrt[3]{2} ## 3\sqrt{2}
\log_5 7 ## \log_7 5
2\log 3 ## \log 6
\sin x ## \sin(2x)/2
120^\circ ## \frac{\pi}{3}
0.\overline{12} ## 0.1\overline{2}
1\frac25 ## \frac25
1\frac25 ## 12/5
6.4\times10^{-5} ## 6.4\times10^{5}
6.4\times10^{-5} ## 6.4
\begin{pmatrix}1&0\\0&1\end{pmatrix} ## 1
x^2+1 ## X^2+1
x^2+1 ## y^2+1
(a+b)^2 ## a^2+b^2
\frac{x}{y} ## \frac{y}{x}
x+y ## xy
x^2-4 ## (x-2)^2
a_n=3n ## b_n=3n
a_n=3n ## a_k=3n
a_n=3n ## a_k=3k+1
a_n=n+k ## a_k=k+k
"""
