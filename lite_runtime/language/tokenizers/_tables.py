"""Written by `python -m tests.language.tables --update`; do not edit.

Each value is base 85 of zlib's compressed varints: see `characters.ranges` and `characters.cells`.
"""

from __future__ import annotations

__all__ = ["TABLES"]

TABLES = {
    "cells": (
        "c-q}rO^9Sy6+ZXp{Z!qquIgJ=w`aO$da7Q(dtY}?PcoTgW}?PqP!bFY8W$!+#2<`;Kaea0K{p`=vk9Vzn+Ps6xQ-"
        "x+aTP=(qCx}>E<}PG7fNuY0Y&}Jd9NxxlW{bOPB4p8@4fqT?m74TpPFx}P2<%Bu&##6t1)1peSc4TGuD1<fpL$SsX9>8tqNabe2o{_r@Wo0f"
        "Y~X2qZ(mmhBy8i>yvm^n&(bpZo`~ZesiJ5#o|b%#$}}z>MDYMo%62`^y=NL-uY>8u3f#ibNUtg^r7|3ag0UAX7Q_bWc2Xw>*Q1)!ep+hoR&~"
        "@chOR7Uon3x_@7n2w$rtGeVWz9RMpV5dSm)PTCL&{#zLw#6|{6=N%M#YPlPA&85?-"
        "^7CXW<%iz_~nYGXHQYzOkPXBjqAY@7JUd=n#Z;)+V6`-"
        "_WEy(>|CEks6P!mO`k{YO_yzW4yl4jA8joLfPXYBvfM0*_^&(4gWM^*RZH1+qa*HNX9MvTWIvER#+u7M@kq+@^2M4S=VJv40wTTR<>mNeZPf"
        "hn$2e{T_cSg!*7ZVlR!o`h(Vs(Szffc$BQ-AALr8%`k?GddF0G>_2SSw_9I2WpPs?0HhnIh>&yKr~I6EZ%g(l=Y)d?9G9p9!43ZGU5gR0hkH"
        "^_At-"
        "X?gss&8wUO^Nj0z=tTK!Vlw;>4cZzS2x#!h<GUd@;gjKIVFq3I?!V0W6$zY_wnS6G^IFn)eeZRxilk?O?xUv<68L+kMm`04oA)g}Dfuc!)ks"
        "NC-"
        "&+TDca$^^9TnOfiIp*k=yMDU^d>Wz6;;DrL#%Tl$V2$rV?jPR`^WD;z<0e`1#^ro>Ap<_1D?45{0iz|4EJ558PH8D(T7W~Z_ymu>a1wW!OMe"
        "(k{}K+fW_cIjlJPb9QZg-"
        "n{MD?nY?|fG?_sXh2DRb>*n;KRrf|!<>465;$QHi`|Iks9A5&XImNfP>M&to$;B3g7Z^*CFX{H`pYDrCir7l?qka@(_&1Qfj-FshF!$N?W$K"
        "l}#wkP;(oU<MW*bFif6LiW$f3MFslvcnQ4nQ}2TQ%gg4q0bn{TW*()l4B)LPGEnnYV#yIT<zILj#>^_>TBy`g^(0Bfmor<fgz!V_?GrkqFLj"
        "Z>)jDSp!0nr~|3P7oB83gsAirEsCT&Gi=}Yy656Db1-"
        "3gOZWcH$fnfu6K9|}{gBh$K%H~I8~hQrg?reDYI7?x&xY=Z#+&^T_U4)5rblCzaie_?BRZ|opp!kn-ym~EDn*lBVn4-"
        "sqUalL98z>S<?yD~8}@&R$95pYvp50Tmnybs_^jJvpH47l=rruSX{{rNMnLKTb_0oTi$onAKqgy}HAI1_Dr~ZriT!AQwzJlv)g+;-"
        "1fD)ymz>T}c=q#}CA&LH*AdI@TJeop>TDsk^5=64-w(aigBNCQx1;z1mM^GdFMc39wb-eQH6>YJ#}X&=Izt(-u-"
        "!8cd5yc2h?CJth{7yNU$PbZfzS<^q+E1Zi4J9SP~B1wkf~HvtS_Yh`#5{mp!cTWp<J-"
        "B=FpT9@8w0`ZHD?X@a%deD|eQF?31K|*x_2sOwH=sOfA;RJDF)&WeYQfKCb4G2b0^(W;rT7)NLDTUCXZ;m0lfDN3)sQ?8yxBoCCvEA$*8ytH"
        "Xo7SJ(@`J5!Fcm)sedM{cxyqd{$GF&WYz*<HlB-"
        "L*92tZQKbcuMUfwMF|q&KB^w3$+5vPs#jYHI)t;8ES?++g4It2HrVxJNr@}>?@}cnX+*f^w_rZ0tMg%#`s;y`=fdc2j2yP38o79dM_ro!_o0"
        ">$j9#rfn1o<O>QgPa4xu~cxMlAE|lZ@@q9_GFkB9{-9gCY8cvKaH$NIbsKXc3_)0h~g<Dpu=koTD9-"
        "j_V@Rg67plObH^@(u0t3J#nIlEou@zAf@yeT|@u0&s2epBmnt%n}?#I}PkuKaF9EJBvx*AXE$V^2cqm0+GadjOdBO@4dQ6G62gUrU?0SVS2j"
        "Pv2|ALs_>zK;6)FRSv_TqAf`4-"
        "mpf`tFT3*APtxRGNanRob2^0wQT@{9jegV=WwM4S&gIi1p^LMbT=o8Nl!J84Bn4XQ**dE2^K%dp)Xk15A&Ep4<UFIPhd~qZHE%+($LLA-"
        "!*tXqr)@T#|z<Wj{{5nmlC<$d2HB~IQJ-m7!m^H9ViGU^gk7LWCw!8kc+VTH5a%j&X9`iBQZlz-kkPoX$Jg@_2!LL@4CElVSbqQ_-ZN6I=Ip"
        "rd+2oCN|!pgXyuelE0G9Ys|uDBfD@g~*d|hN$4HZMCnYy>)ElD3{p;pT9AUncG%P2N#0XZv`Wrc!I~I{(`AsC{NIp^O9OvSyOXYNzq?u;G<#"
        "ml>99S|=)#@JfF_ZEomo*GMPHMT#;#96J7NECC6HzWKOTaU+ExWiR%B1w+?;~7>K-pdF5`QmzVn-ikpzh#hw}P~OYU`fJ$I@NZPHYRownUSZ"
        "Rg%=l?}=-u)GS>WA0E+zXO6wd1?nebqM}-(jGY(XLR8~HR|2U+1@))n#&kq~z$=`=C|tnSbL{8B9JQyKm@rC3*Uimo#MR9}AN;!jqh$wjd5-"
        "oZKJ3t}WB>!icJ4$>w6{XkBV33f^{3a;K<-"
        "w{(crW`g_}JADZhNLTFPlX!P=<`c!EWXkk=<OLqfpJqF7KUW7>NeV#j){==1P&1|*(B3DFB@_pRFq+CkPdK)Ip9wR8$P`H&)3s_Wtqv0>&c&"
        "7*Zan!pJ|RrWJVF-sY3^W}T46*20w{e9Y9>{joNtsv`#rMj~4i6s=971bf*8Ul*8zeo;7GXxZpdl{@+qo+{BQb1W$Lc?+tvHO5teXH=yl0N8"
        "K3VgqtLO|(YPoZ!pa8S>k?s(29b0H%A!ip_?DSrVW57yvx963$bIM!({=nx#)Dy6(TE_EY{uheq|^?bo2PHfE0nayx4a;qkD1xmwnprh~sdr"
        "CLP8Kv`3HjCoDaCgz|@jP9>7|``q0UO6P!J^wz45uOHgat|@ZnM>)f~}9AQ*^?CVW~2u6BkDy>O9Ch9#O4>y#S-"
        "PF7p9ZDTwxorm=7n;`rSf>)AMjhFh9A)QMuU3UllpPPP3jHde1@&|(;>nrS*JU8Wps>d19qDP050=G^d^JM30GV_}zd8d!SlX5gx9Y7G}BNw"
        "1HsW8xfWlir-"
        "vgl&zOd#UWw&4&thB?UXw8<xnfi+gjKP@=EUo07W`*I}EsGi91(2Pxy)8eaw1p2<nCM|EnG+Fo8Gy)WK@6KvNdYkPwX;1li=!br#ItaJ-CcW"
        "3ytn2FhnmBW#5)9DslOG(@PkXv9Oe_Mg2wq3ZK-"
        "1L?Uf7w>9E{6TO6Q&1#%sEI`yyr`zd|SFt_Kwl4ZCf?1m*=A0vd4CuAr<jyHVu}I)X)AtnlI)R_n_9~Cix!9?iP>4yzO_jox-"
        "*gCeGeKsr!4k$&O~(@05;dD`C~lfT^E$qY%g{EuCQ{A;qL?;$X#A<_9nV=$3y{algi|3n$$Eim`1~EV;zhVs7lX;lb^WAVMlyRsgrJ6d>UsB"
        "h4~y{1qa$)~fPu#XNFLk7r*NEi3qwT6#JhsHAHM5;%ZV(3lJ;mx~A74^HoszUkDJ!A>^905X59h##l>_o0H`(GOMp*@Qj<bs5kTWgN}8cQJ%"
        "Lef<Qyz>jTw`YfE|T4EFE?>#%9r!8pUMo$}$-y?51Noz-1yQgE3xTR*1kgL#_#$y3zFa^GGd;$T!-"
        "bD~Fpzc{EqTO`Xe~j*kR$7_o8~B|xs4tMNB@=}D>t>x^x)%EQd@t_77=C{%S?&q~u!z2;*}cc(UHfz$CRx&>CO+)xQ#f@1-`3-"
        "s<JrI}WoN(Hrayr?Q2t#L?xbs=9h*oYJ`--DKQq-_Zrv1E5lqONat1vQMcNKFy&W~<I|588d=4&RP2e6R%tzfL2vm!$YHPt!z*qd<{{N(<8^"
        "}+t)Jv{zCC%b>PS$Y@vD^{pV#;y^LXy6K=|)@pm%=e5Z$}que6&*Iy!uby+JDW?>^*41`DDYH#4XYFz)j4|4_TTtOwU0jk@ih0sAcu5wh_CL"
        "v^-"
        "feIe6Y&FCe)G=oH70RMc8@gWJf@XpXFDgFAjuAB3*Sa|YJ0YW{p)vD!$N70dk#Mr^~b;=H0Cv8^L~r9G+^RfR)q+bP~xa(Wx;7~|B$x;v2ta"
        "82`rcKfVDvGkbz4y_V^e~q?#Z^2x${!&=Z+0K94L--i?2B#vOPv3|)AOL<z(?PIwAIiTWG--"
        "&egdsw+25u*8oy$9@!;N$tX34920p=XmDG!e+`l|}r^w$}NH;~S7O7mH~e+a4dTHucAP@Xpi$OmJ)cy4pDgfSg%reA8Dyp93h*bf;N7D9=`V"
        "m{}qC`IW5Fn}+X^uo_|oYVK`xS8KFn-86W34Q0Su&Ebq{N|XxVdL){{S=uJy)ciz_})nb+im*r>_G(^N?-n)p}+sb9Mj$JKLP#`Omz"
    ),
    "numeric": (
        "c-ke9JxGFK5XZTD-si)=nw4*FNoWm`6c|wvL=H_ZN~2rQR1Wq5fz;+C6cJ4Z5m8VsMPm>&SVMyZP1Y0yg3u7rVnj=iv>e<W{O<p|acr_A7N>"
        "rc2oHoKfdU+rx3vIPtHBKzy^NgJ;T0^}S<2mIr0^u&FC{(+3LY*QMe?7wn`=V0jZ!EZ5=vR-B+F-"
        "+ocCHz>>aeNDB|l7FYN3PVunJ4h=<;qgj+(D)gfWHox`)3vOu{)_z;P}Oc&R=f5?fFp%Td&;Yyo`j{DNmQzyjS$zyZADUOM>%$YtjqHC<i+b"
        "MY9m@w+B>k`F^ge3L}+WjRwv$bh4mZ02B;7o)UP?pF>8)WsS(X^YM3$u2&g-Z9o6X`t%CGLG?@pEIp<#z*aK2kRm)oxS-"
        "S_0pMN9nU?4%93Oaxw`D-RoeZ2Y=6IN-F"
    ),
    "punctuation": (
        "c-"
        "jq*%S)7D7{&RW=Xu}no6osHgT_QoB}$PnM&L&1wh>%3JE?Xh2qNNuTN$Eo6_Fq!l(ldb)uyFjZrg^da4n2Me?XIgy&O1ab#7N{Mb?Z>zed0)"
        "WQh+0IY$<6=r*8)Ni~vGkmh`mo7G>~bgjjPRB$d{MxG?^M`|$cv&;q8YWxf*UfO}*u1P(#S-"
        "nr;Ha@g3{Y1~nh+oLw;WOcm?&U)q#EW@@3guB%HE_SIZ+W$&R<UKncm0aaf}<{PXmjDv%nOz4lzEogU!0=XvIPp(;y?Mkt{dD^o2Qk!*1e~?"
        "25_{8eozdLQ3X%uw$r3YN-{N*;ZizG_SS4SFvSO>ANUR}HdUISn?1-"
        "L`=?U2BE08Q>I6%3u}5*4UFR<&OZEr*+6;qNXanwtoZ~&{&xHRKFF1+"
    ),
    "marks": (
        "c-l=;J!@1^5apbidH250-F@t4(PbZ-xJZJoSr?6Kf})5bR+36cp@=CW2v%w-"
        "2nvEAsGvc_CXJ0EScrvI>4X$^R@%nGUm)JafVoqhnR92(9OiCx^9kJp4gfF&&Zomx9jlHJ3EhXPvyv{xGm01jJ0N!oOfLvZxP)C91CFG`*g>"
        "WN2`UQG3HITaG<PvQ6INKVK++hqy66H!9n&4ofAp_1>0I#~GztoR$rGT<{8cal)93;_m^|g-"
        "CTJ=8F|IY+s$nXfXr2Lyel~gUq$}Of=~OSqKyGsew=&JX!;UBD62sbQn{VuoGpX`%F>F2$vs(%k;U*T$wru)OTOI*ddT%sZ<F{=nk{&PeF()"
        "$7wo4q9d&?t!PkvD6i$2a289WCvLeN4B-p-lvSFnWdUI9O>Uax<3_z66N-OnZH*I7|)fG-j`S{v&iJuCg<Br+Kmv0Tm~yhhg2-KK{n?F-"
        "7a=61-%9WFPn=c~1QiHBdFLh<n>Y{{+rLv?+)4sOnwMBdX?`V{i1c1%Ye1*QzOt;C^07f!%78t#Vs@OJnce*vL?J75"
    ),
    "bert_marks": (
        "c-"
        "k#dJ!@1!6y=<I=i}{ryZe+RvaI`9G{S0#K4Zwn4N*}9v9htzCIpf~8!KxogMuKKK!_+dA!rqB1F;dY5mHzPR@w@|Um)HQX9niuo_pq=b07H!"
        "FX*0d8UStLMqZDXSPAqb^dze8-F%dtP-GCeDOp2*XjqL32@Uozf@;JVd%Osxk|L-"
        "m$kW|{nqr1xN<y^v3X3Q(gGF%y4b1<?JscDE@;|;+1Oe`Vp@_?%2XlXuU8FH=!I)i+$qcJ%i6lEzDYa=wk2XFyc^{-"
        "FJyyIzglOp*rsXB@P?Q<Gd^f25i;x%@eS@f5SG9(5+ZtpA`z8l6Z(%D%Mv>e!7n%s^PvIxbc|CAVv!eKOOr8Nt{dcPO`Sq8HZS;AI&n+K{4q"
        "pM?qqDJ-pOxB7AqKc+7L$c}at;@apLAx@8AcqYW+--F13z3@mR|yX0vm9Tn_{|kAc}2ptAV-pyqvcxugj!Eyo7?YSuV?BMBFjXIL?t(a4Lw~"
        "H)E_r;33r8*5&P(VE2-I3$2Lt%6;5{TL|BxKHUO8pOzz$q0)88UVErB5iLwOwBH;LZ+Gk8_zOt+IA;"
    ),
    "bert_removed": (
        "c-mv&WMX0zidW=iyu`&O#(02{(U9?<BI6%^Rw-6PRz|J~|Ct(${&O?_WMpP!+^@*^=sFY2c}<SCy9SJM2@U_5|NUoX0%8C@HWaS"
    ),
    "bert_spaces": ("c-rG+Vq%=c$ar6y@xKtaEE6lEKH~y;MgT051K$"),
    "chinese": ("c-m{oIAHA1u!ON;6JrBQLl?_~vrGyLlp2^OXkQ3gzybid;tQG"),
    "nmt_removed": ("c-mv+U}9tvif7~pLI4A}0HF"),
    "nmt_spaces": ("c-rG+Vr2TH!`LOvD#3J}i}CL!X2!pai~u&n1%3"),
    "words": (
        "c-mD}O^g&p6wdeRRdscB_jLEn?9A-"
        "X{J}8n?yw8X{;`XJT?tEeSLL8!@L=KrOw_1}dg6kFpowxb95mseh8qc9G~h)Og+wL6L^v8^f*v%)g9qcuS2K%|?yjz?epTOl_1^nl?{UEh10"
        "%cPz|d7R@txwhpaTH;TObmt0hCP3cpC2kSAZ_TOxP*;MsmZBGS?%$!KYx!p+v~`)5*dDd+~H}j3Zrxv72}sUM!1<Di95dDU>l=FhNu7Jfec("
        "f!u?W;A@#Hg+NRRvPdBma|UuPcnXS;GPy92@k4Ac^Vlj-JXnWJtQHuS<z9_Is+hI^A_5d#mdO69Ec5srkjEv#%^0>XaUOFZGbFo2ckK7fO4F"
        "JH(c+AZi>f9zf&y78zJoQ6C|TAi+)l4sqbBbvX?X{5#4VW^7r|fb(BU$Q=!96>Fi%m}Z=fD-"
        "d6hmaOcT=D|IJb?$@>tgR+b$nqyAvZF`_qB6jZ`WRPNhI@iYFQ<k||6IT7^qnrkBF*o~8pcJYXD-"
        "7!9hIz`4Mu+5n#mCM8U&3K=6YK9`+Bb6!a)E8M!-"
        "<4)DxSBNI52i#&d~G<<GD>NNN*F_eESYWRl3YFnN}ItRMno(=Lq2iE%v~(phY91sN%sXvYZA*x@78YIQEE7q5NJN`1B>Utx`*fU)}HJPe>J;"
        "u;R+5-(*;sv<ync<8#_XJQQYD^ZigfpOLOs>1gIvtJVTwhu2u_?X<{)fkTX@aUQ?8jc1Dh7`uck)nA4Jh&V2f8T;-"
        "W_k3S%KsT;&v$8s>emH)4_f2ZOKEsV#UWtpOyYH7TK(iXL%6RHnMYI}?kNq@;!Dr`G_c>Z1BEb3||MYEMObWb;^BV5pvm&947!yO*Cb8&>Up"
        "U+#pnv1`nu;OgZU=rbB$wch(tf8u_hRs#McNI6Xw$IRtI9>bHt&?K3>Z-ooqA|Q6@={WKb$xL*nN7y6GhL-"
        "o{YT)06`5LWJJ@!!GC4F_4UaUl@UZ~NaNx{59JB3^Xk``$V0#fe3?JyHp;+gF{o+3UKL;hdB~+eYIuJhS$a$Zki$O1I6RK}&!ELNbnA~M7P*"
        "^qFRwYYacS)3%$3`h-"
        "XM$_ke{y5UipQ;NZAe_g*sWQb_Vdw$7Is6Zw|*1t)R_=d2vb*Uh#`e_Z^|y^HHLCpBmE9(CUBoqHOw)gbP^rI(GP=DujSw1hw=;QRhw1ZM@@"
        "Z`ugx#tNUm|vgfmB_HH0pUq3|Xg(xt0vO1T?YIfG4J3i1^(E~3KUyY1a@!u@ub`%d^o7+Mz}6xhD6&J|zQi3$U!=*N~j&(l=BBt^(rOF@G_f"
        "cjD$!x3Nhd|^b~FA=N4Tr2&UuhGJy06!58V_2&7qs`LZGrY)qEefb;q_=I;m^-pFr+zr}fi_;BQj+kDuc?_Y-"
        "&K=$(Yr5*zF4RD7Ev(q1iQ;2W7J1T9{*>6{|oSdyK3wE!^_Y7Nx8qkAs7B@<bO#`k^9%OJ8$pZqSp16`5AO}s_@xz`hY(!UE*J&@4Nb5>-"
        "P2DpZFKSmy2c"
    ),
    "inert": (
        "c-jrlze+-J7>9A5@9%xj`FV^eDUgOxaB?ag&JYDIHA{DtICcSngNWcCh=>{*@&>wsaLA>lh9H7kGCK1EAD-uomX361Tv2LfbFnb~&{{0Fn5C"
        "_L;v)~M2A^+O&SS#r9`+anr^)7PW*uKh`(E21oR$ym9iE&sAR^iz50|h^wFZ+hfO9HznR*es%z|Ee#Ds@x=(}z&u$#Pb9W_yi5;ct@AKT>Zg"
        "OfT#(jRebzrl*luR<V|^SwiFH~R;_bShK"
    ),
    "extends": (
        "c-lQtJ!n)x7-Z)A_U-$-_g>DsT+GjL(IX_9TrLs4Xb40DK?}jeO0)=K1O>rHi&Uw!F(9ZA3qu+kZGx=?#Uff-SQ#uLSVcq-"
        "v60}uXxxQeW_NbJ`DPcrn-6I3atHw3#ObJ6&M<H3k<f#vc3q541OYk}0R-l-"
        "j0cB0(0fc!gbmpvV}K<o0YY|yIX3FBph`iMW8b}$65BoeXIlwb#kg@a4bX2|?%c7|GWw^vhf>7a;$NKC=#got=luFbPPjGpF9Ts@&#(*mP>z"
        "&96QLg9Y6P#MDw!4l@sQ$`kr!6GrH55c)&dL(aEk|UJJxs;=6IM(u!Cqe7?;d&TVD`MwJ?@6OUuqdS>d@JH!yim`3Ai^6<Gr2YR}ZW#t++2g"
        "f*VyedcaaF^cmXEp`?Q==1j%26Z^8V=9T^vw<Vd5@}rM1IF;HONnbMz?R9f>>K$>@fmmobEhD#AMF>#Q*d4Nq**7=dehN}F38bz0A#2`k;R1"
        "6lZ=CirJ48&UW%PrJV9LEO>pm*XvItg`G-"
        "4?21qzttYD_J?I=MPXWOn9=7r%R)1P^_)I5?UcWDLPVZVj?2%<)|0spOY?a#I&S@0wmw7@CjcC$$hoPN`ls^H52y!73L;_H28+%Ee-"
        "%jygwK7R~u)f=p=s1eWiX{-7W@-l7dsE-8g2I>3IqK!7!yn<EOU&Ms|7Tp1V>{g_~N3l2TTG^~FH|G}d9e)4;o=?X"
    ),
    "prepended": ("c-m{=VY|-AXvo;W%oM=*nuGCO8w(>p;}=GzUKYl;T#Ss2hnU#*urlsuW&{A%kqN&"),
    "lower": (
        "c-"
        "jTQMN&gS00hvgq5Dv|9lC%c^xxp_UWL0vCW<6!H0*J=_c~KusdNktWMat1kc%P4P>i7zLpg>@4AmHFG1Oy7n)1TEP!Jx3qVOn`geRdaJPQ@!"
        "MK}>&g;U{8I1}E5bKyg%3ZFtv_!8>Ew_xE%xDbAYOW{wr5}FfS3oQw5gw_PNLR*4{(4OE<=t$6Qu9!XMs@ZF<nSJKE*>7%`1LmeVXl|K9=C("
        "O(?wBLyt~qM%nPcX@Ic^@96Xu~gX&#wV=CL_#rp*~MW6qjcbI#0}^JX*`%)Gg17R)8HXfB&2^B=dwr;`"
    ),
}
