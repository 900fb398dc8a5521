"""Pairs of answers by what they say beside their value: chains, rounding, names before a sign, functions of branches.

One pair a line, `gold ## answer`; ONE_WAY holds for a gold and an answer in this order only.
"""

SAME = r"""
# functions of several branches, compared far from zero too
|x-5| ## |5-x|
|x-5| ## \sqrt{x^2-10x+25}
\sqrt{x^2-20x+100} ## |x-10|
\max(x,100) ## \max(100,x)
\frac{x+y+|x-y|}{2} ## \max(x,y)
|x|(\cosh x-\sinh x) ## |x|e^{-x}
\sqrt{n!} ## \sqrt{n(n-1)!}
\sqrt{x+2\sqrt{x-1}} ## \sqrt{x-1}+1
|x|^3 ## \sqrt{x^6}
x^{3/2} ## x\sqrt{x}
\frac{1}{\sqrt{x+1}+\sqrt{x}} ## \sqrt{x+1}-\sqrt{x}
\frac{x}{\sqrt{1-x^2}} ## \tan(\arcsin x)
|x|e^{x^2}e^{-x^2} ## |x|
\sqrt{x}e^{e^x} ## e^{e^x}\sqrt{x}
# a logarithm has no real value there, and no sign of absolute values is missed
\ln|x+5|+C ## \ln(x+5)+C
# an inequality that is not solved, and its solution
|x-3|<2 ## 1<x<5
x>2 ## 2x>4
x>2 ## 2^x>4
x<-2\text{ or }x>2 ## x^2>4
x>0 ## e^x>1
# chains that agree, and a rounded value behind an exact one
12 ## x=3\cdot4=12
1.414 ## x=\sqrt2=1.414
9\pi ## A=\pi r^2=9\pi
28.27 ## A=\pi r^2=9\pi=28.27
2 ## x=\log100=2
5 ## x=10\sin30=5
30 ## x=30^\circ=30
\frac12 ## e=\frac{c}{a}=\frac12
9\pi ## A=9\pi\approx28.27
\frac13 ## \frac13\approx0.3
5 ## 5\approx5.01
\frac13 ## x=\frac13\approx1.3
1/3 ## x=1/3\approx1.3
# names in words, and of probabilities
12 ## \text{Area}=12
12 ## \text{Number of ways} = 12
12 ## \text{No. of ways}=12
12 ## \text{number of wrong answers}=12
\frac13 ## \text{probability of at least one}=\frac13
3 ## \text{least value}=3
3 ## \text{minimum}=3
3 ## \text{opposite side}=3
3 ## \text{least upper bound}=3
\text{red} ## \text{color}=\text{red}
B ## x=B
\frac13 ## P(A|B)=\frac13
\frac13 ## P(A \mid B) = \frac13
\frac13 ## P\left(A\mid B\right)=\frac13
\frac13 ## \Pr[X=1]=\frac13
\frac13 ## \Pr(A)=\frac13
\frac13 ## \mathbb{P}(X=1)=\frac13
\frac13 ## P(X\ge2)=\frac13
\frac13 ## P(A\cap B)=\frac13
P(A|B)=\frac13 ## \Pr(A\mid B)=\frac13
P(A)=\frac13 ## \Pr(A)=\frac13
0.33 ## P(A|B)\approx0.33
# a prime behind a name
f'(x)=2x ## f'(x) = 2x
2x ## y'=2x
# != directly after a number or a bracket is a factorial and an equals sign
120 ## 5!=120
120 ## 10\cdot9\cdot8/3!=5!=120
120 ## x=5!=120
6 ## (3)!=6
x\ne1 ## x!=1
x\ne1 ## x - 1 != 0
x\ne1 ## x-1!=0
# binomials of a name, and a sequence with its index from one on
\frac{n(n-1)}{2} ## \binom n2
\frac{n(n-1)}{2} ## {n\choose2}
\frac{n(n-1)}{2} ## n \choose 2
\frac{n(n-1)}{2} ## C(n,2)
a_n=3n-2 ## a_n=3n-2\ (n\in\mathbb{N}^*)
a_n=3n-2 ## a_n=3n-2 \quad n\in\mathbb{Z}_+
a_n=3n-2 ## a_n=3n-2, n\ge1
a_n=3n-2 ## a_n=3n-2 \text{ for all } n \ge 1
f(x)=cx ## f(x)=cx \text{ for some constant } c
"""

ONE_WAY = r"""
42 ## 3 \times 14 = 42 \text{ apples}
25 ## 5^2 = 25 \text{ square units}
25\text{ cm} ## 5\cdot5=25\text{ cm}
12 ## 3\times4=\$12
# an identity with the gold on one side of it
x^2-1 ## (x-1)(x+1) = x^2-1
x^2-1 ## x^2-1=(x-1)(x+1)
x^2+2x+1 ## x^2+2x+1=(x+1)^2
12 ## 3\times4=12
"""

DIFFERENT = r"""
# functions of several branches that agree near zero only
|x-5| ## 5-x
x+3 ## |x+3|
|x^2-9| ## 9-x^2
|x-50| ## 50-x
|x-5| ## (\sqrt{5-x})^2
\sqrt{x^2-20x+100} ## 10-x
(x^2-20x+100)^{1/2} ## 10-x
x>-3 ## |x+3|>0
y=|x-5| ## y=5-x
100 ## \max(x,100)
x ## \min(x,100)
|x| ## \arccos(\cos x)
x^2 ## x^2+\max(0,x-3)
x+y ## |x+y+9|-9
\lfloor|x|/50\rfloor ## 0
# a half-line and a long interval
x>2 ## 2<x<2000
[0,\infty) ## 0\le x\le2000
0<x<2000 ## x>0
n\ge3 ## 3\le n\le5000
x<3 ## -5000<x<3
(0,1)\cup(2,\infty) ## 0<x<1\text{ or }2<x<5000
x>2 ## 4<2x<4000
x>2 ## (x-2)(x-5000)<0
# chains that contradict themselves
\frac12 ## x=\frac13=\frac12
13 ## x = 3 \cdot 4 = 13
13 ## 3\cdot 4=12=13
42 ## 3 \times 15 = 42 \text{ apples}
25\text{ m} ## 5\cdot5=25\text{ cm}
0.5 ## 50=50\%
5 ## \sqrt4=3=5
42 ## x=\sqrt{41}=42
\sqrt{42} ## x=\sqrt{41}=\sqrt{42}
3 ## x=\pi=3
3 ## x=e=3
x^2-1 ## (x-1)(x+1)=x^2+5=x^2-1
5 ## 5\approx100
5 ## 5 \approx 6
5 ## x=5\approx6
5 ## 5\approx\text{wrong}
# words that are no name of what follows
5 ## \text{not} = 5
5 ## \text{wrong}=5
5 ## \text{at least}=5
5 ## \text{at most}\approx5
5 ## \text{lower bound} = 5
5 ## \text{more than}=5
5 ## \text{opposite}=5
5 ## \text{guess}=5
5 ## 5=\text{wrong}
5 ## \text{not }\approx 5
2 ## \text{not }x=2
\text{even} ## \text{odd}=\text{even}
yes ## \text{no}=\text{yes}
\text{no} ## \text{yes}=\text{no}
\text{true} ## \text{false}=\text{true}
B ## A=B
C ## \text{B}=\text{C}
\frac13 ## P(A|B)=\frac14
x^2 ## P(x+1)=x^2
# a prime behind a value
30^\circ ## 30'
30^\circ ## 30''
\frac{\pi}{6} ## 30'
\frac12 ## \frac{1}{2}'
(1,\frac12) ## (1;\frac12)'
# an equation that is no identity
x^2-1 ## (x-1)(x+1)=x^2+5
x^2-1 ## x^2-1=(x-1)(x+2)
2x ## 2x=x+2
# a factorial that is another number; a name before the sign denies equality
5 ## 5!=120
120 ## 5!=121
120 ## 120!=5
5 ## x=5!=6
120 ## 5 != 120
120 ## x=120!=5
1 ## x!=1
x=1 ## x-1!=0
0 ## x-1!=0
6 ## 3!!=6
\frac{n(n-1)}{2} ## \binom n3
\frac{n(n-1)}{2} ## \binom{n+1}2
\frac{n(n+1)}{2} ## {n\choose2}
1 ## \binom nn
a_n=3n-2 ## a_n=3n-2, n\ge2
a_n=3n-2 ## a_n=3n-2, n\ge10
a_n=3n-2 ## a_n=3n-2, m\ge1
a_n=3n-2 ## a_n=3n-1, n\ge1
a_n=3n-2 ## a_n=3n-1=3n-2, n\ge1
a_n=3n-2 ## a_n=3n-2 \text{ not for } n\ge1
a_n=3n-2, n\ge2 ## a_n=3n-2, n\ge1
3k+1, k\in\mathbb{N} ## 3k+1, k\in\mathbb{N}^*
f(x)=2x ## f(x)=cx \text{ for some constant } c
f(x)=cx ## f(x)=cx \text{ for no constant } c
"""
